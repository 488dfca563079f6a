"""The study of promised errors, on a few texts and on risks that are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs
import torch
import triage_study


def test_it_records_predictions_once_and_draws_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.tokenizer().save_pretrained(tmp_path / "network")
    runs.bert().save_pretrained(tmp_path / "network")
    runs.write_reviews(tmp_path / "reviews.csv", 200)
    (tmp_path / "tiny.yaml").write_text(
        f"network: {{name: {tmp_path}/network}}\ndata: {{train: {tmp_path}/reviews.csv}}\n"
        f"attention: {{method: deterministic}}\ntraining: {{{runs.TRAINING}}}\nreport: {{baseline: false}}\n"
    )
    monkeypatch.setattr(
        triage_study, "SETTINGS", {"reviews": ["data.limits={train: 60}", "data.max_length=null"]}
    )
    options = {
        "folder": tmp_path / "runs",
        "output": tmp_path / "out.json",
        "recipe": str(tmp_path / "tiny.yaml"),
        "splits": 20,
        "calibrate": 100,
    }
    triage_study.STUDY(**options).main()
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    (run,) = content["runs"]
    assert run["predictions"] <= 140 and set(run["promises"]) == {"0.02", "0.05", "0.1"}
    assert all(0 <= row["held"] <= 1 and row["answered"] <= 1 for row in run["promises"].values())
    for error, row in run["promises"].items():
        summary = content["summary"]["novelty"]["reviews"][error]
        assert list(summary) == ["none", "0.01", "0.05"]
        assert summary["none"]["answered"]["mean"] == row["answered"]
        assert summary["0.05"]["held"] == row["novelty"]["0.05"]["held"]
    capsys.readouterr()
    triage_study.STUDY(**options).main()
    assert "left" not in capsys.readouterr().out


def test_figures_are_those_of_the_population() -> None:
    """The surest half is right and the others are wrong: the oracle answers a ninth more than half."""
    scores = torch.linspace(0, 1, 3000).double()
    wrong = scores > 0.5
    assert triage_study.oracle(scores, wrong, 0.1) == pytest.approx(0.5 / 0.9, abs=1e-3)
    far = torch.rand(3000, generator=torch.Generator().manual_seed(0)).double()
    own = triage_study.Population(scores, [0] * 3000, wrong, far)
    others = {
        "surer": triage_study.Population(scores / 4, [0] * 3000, ~wrong, far + 0.5),
        "unlabelled": triage_study.Population(scores / 2, [0] * 3000, None, far + 1),
    }
    row = triage_study.figures(own, others, 50, 0.95, 1000)["0.1"]
    assert row["held"] >= 0.86 and 0.5 < row["answered"] < row["oracle"] and row["error"] < 0.1
    assert 0.5 < row["certain"] < row["oracle"] and row["certain"] == pytest.approx(row["answered"], abs=0.02)
    assert row["elsewhere"]["surer"] == {"answered": 1.0, "error": pytest.approx(0.5, abs=1e-3)}
    assert row["elsewhere"]["unlabelled"] == {"answered": 1.0, "error": None}
    for share, each in row["novelty"].items():
        left = 1 - float(share)
        assert each["held"] >= 0.86 and each["error"] < 0.1
        assert each["answered"] == pytest.approx(left * row["answered"], abs=0.02)
        assert each["elsewhere"]["surer"]["answered"] == pytest.approx(left - 0.5, abs=0.02)
        assert each["elsewhere"]["unlabelled"]["answered"] == 0


def test_other_data_are_noticed_and_own_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage_study, "COMPARED", 20)
    scores = torch.linspace(0, 1, 2000).double()
    own = triage_study.Population(scores, [0, 1] * 1000, scores > 0.5, scores)
    other = triage_study.Population(scores / 2, [0, 1] * 1000, None, scores)
    found, _ = triage_study.noticed(own, other, 500)
    assert found["300"]["share"] == 1.0 and found["300"]["interval"][0] > 0.8
    for told in triage_study.noticed(own, own, 500):
        assert all(each["share"] == 0.0 for each in told.values())
    far = triage_study.Population(scores, [0, 1] * 1000, None, scores + 0.5)
    without, by_distance = triage_study.noticed(own, far, 500)
    assert without["100"]["share"] == 0.0 and by_distance["100"]["share"] == 1.0
