"""The study of guarantees for heads: draws of whole texts, intervals that are known, and a tiny run."""

import pytest
import runs
import torch
import triage_heads_study
import triage_study
from triage_heads_study import Recorded, TriageHeadsStudy

REST = f"training: {{{runs.TRAINING}}}\nprediction: {{num_samples: 3}}\nreport: {{resamples: 100}}\n"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(triage_study, "PILOT", 20)
    monkeypatch.setattr(triage_study, "HELD", 100)


def test_texts_are_drawn_with_all_their_questions():
    groups = [f"text {row // 3}" for row in range(90)]
    rows = triage_heads_study.together(groups, 0)
    assert len(rows) == 120 and (rows.view(-1, 3) == rows[::3, None] + torch.arange(3)).all()
    assert not torch.equal(rows, triage_heads_study.together(groups, 1))


def test_intervals_are_as_wide_as_the_quantile():
    """Of evenly spaced misses the mean coverage over draws of 100 is that of the rank, 91 of 101."""
    misses = (torch.arange(2000).double() + 1) / 2000
    recorded = Recorded(None, [], misses, torch.full((2000,), 0.5).double(), misses[:0])
    found = triage_heads_study.intervals(recorded, 0.1, 200)
    assert found["coverage"]["mean"] == pytest.approx(91 / 101, abs=0.006)
    assert found["width"] == pytest.approx(found["coverage"]["mean"], abs=0.001)


def test_products_are_of_several_decisions():
    assert triage_heads_study.product({"probability": [0.9, 0.5]}) == [pytest.approx(0.55)]
    assert triage_heads_study.product({"probability": {"a": 0.9, "b": 0.2}}) == [pytest.approx(0.28)]
    assert triage_heads_study.product({"probability": 0.9}) == triage_heads_study.product({}) == []


@pytest.mark.parametrize(("name", "tolerance"), [("spans", None), ("labels", None), ("regression", 2.0)])
def test_a_run_is_recorded_and_drawn_from(name, tolerance, tmp_path, monkeypatch):
    recipe = tmp_path / f"{name}.yaml"
    recipe.write_text(runs.head_recipes(tmp_path, REST)[name], encoding="utf-8")
    settings = {name: {"recipe": str(recipe), "keys": ["report.baseline=false"], "tolerance": tolerance}}
    monkeypatch.setattr(triage_heads_study, "SETTINGS", settings)
    study = TriageHeadsStudy(folder=tmp_path / "runs", splits=5, output=tmp_path / "found.json")
    content = study.main()
    (run,) = content["runs"]
    assert (run["task"], run["tolerance"]) == (name, tolerance) and 1 < run["predictions"] < 48
    rows = run["promises"].values()
    assert all(0 <= row["held"] <= 1 and row["answered"] <= 1 and row["oracle"] <= 1 for row in rows)
    assert all(("intervals" in row) == (name == "regression") for row in rows)
    assert all(("together" in row) == (name == "spans") for row in rows)
    assert ("aurc" in run) == (name == "labels") and ("correlation" in run) == (name == "regression")
    assert study.main()["runs"] == content["runs"]
