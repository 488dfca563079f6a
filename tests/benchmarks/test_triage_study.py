"""The study of promised errors, on risks that are known."""

import pytest
import torch
import triage_study
from triage_study import Population


def test_figures_are_those_of_the_population(monkeypatch):
    """The most confident half is right and the others are wrong: the oracle answers a ninth more than half."""
    monkeypatch.setattr(triage_study, "HELD", 1000)
    scores = torch.linspace(0, 1, 3000).double()
    wrong = scores > 0.5
    far = torch.rand(3000, generator=torch.Generator().manual_seed(0)).double()
    same = Population(scores, [0] * 3000, wrong, far)
    others = {
        "sure": Population(scores / 4, [0] * 3000, ~wrong, far + 0.5),
        "unlabelled": Population(scores / 2, [0] * 3000, None, far + 1),
    }
    assert same.oracle(0.1) == pytest.approx(0.5 / 0.9, abs=1e-3)
    row = triage_study.over_splits(same, others, 0.1, 50)
    assert row["held"] >= 0.86 and 0.5 < row["answered"] < same.oracle(0.1) and row["error"] < 0.1
    assert 0.5 < same.certain(0.1) < same.oracle(0.1)
    assert same.certain(0.1) == pytest.approx(row["answered"], abs=0.02)
    assert row["elsewhere"]["sure"] == {"answered": 1.0, "error": pytest.approx(0.5, abs=1e-3)}
    assert row["elsewhere"]["unlabelled"] == {"answered": 1.0, "error": None}
    for share in triage_study.NOVELTY:
        limited = triage_study.over_splits(same, others, 0.1, 50, share)
        assert limited["held"] >= 0.86 and limited["error"] < 0.1
        assert limited["answered"] == pytest.approx((1 - share) * row["answered"], abs=0.02)
        assert limited["elsewhere"]["sure"]["answered"] == pytest.approx(0.5 - share, abs=0.02)
        assert limited["elsewhere"]["unlabelled"]["answered"] == 0


def test_other_data_are_noticed_and_those_of_the_same_kind_are_not(monkeypatch):
    monkeypatch.setattr(triage_study, "COMPARED", 20)
    monkeypatch.setattr(triage_study, "HELD", 500)
    scores = torch.linspace(0, 1, 2000).double()
    same = Population(scores, [0, 1] * 1000, scores > 0.5, scores)
    sure, _ = triage_study.noticed(same, same._replace(scores=scores / 2))
    assert sure["300"]["share"] == 1.0 and sure["300"]["interval"][0] > 0.8
    for told in triage_study.noticed(same, same):
        assert all(each["share"] == 0.0 for each in told.values())
    without, by_distance = triage_study.noticed(same, same._replace(distances=scores + 0.5))
    assert without["100"]["share"] == 0.0 and by_distance["100"]["share"] == 1.0
