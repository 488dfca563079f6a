"""The study of intervals over seeds, on numbers of a few texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import relatedness_study
import runs


def test_the_study_measures_both_networks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.tokenizer().save_pretrained(tmp_path / "network")
    runs.bert().base_model.save_pretrained(tmp_path / "network")
    rows = [f"{' '.join(runs.WORDS[row % 5 : row % 7 + 5])} {row},{row % 7}" for row in range(60)]
    (tmp_path / "numbers.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    (tmp_path / "numbers.yaml").write_text(
        f"regression: {{train: {tmp_path}/numbers.csv}}\nnetwork: {{name: {tmp_path}/network}}\n"
        f"training: {{{runs.TRAINING}}}\nprediction: {{num_samples: 2}}\nreport: {{resamples: 100}}\n"
    )
    monkeypatch.setattr(relatedness_study, "RECIPE", str(tmp_path / "numbers.yaml"))
    options = {"folder": tmp_path / "runs", "seeds": 2, "output": tmp_path / "out.json"}
    relatedness_study.STUDY(**options).main()
    assert "seed1: deterministic" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    values = [run["bayesian_mean"]["rmse"] for run in content["runs"]]
    assert content["summary"]["bayesian_mean"]["rmse"]["mean"] == pytest.approx(sum(values) / 2)
    assert 0 <= content["runs"][0]["deterministic"]["stretched_coverage_80"] <= 1
    relatedness_study.STUDY(**options).main()
    assert capsys.readouterr().out == ""
