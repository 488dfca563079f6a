"""The study of promised errors, on a few texts and on risks that are known."""

from __future__ import annotations

import pytest
import torch
import triage_study


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
