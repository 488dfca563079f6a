"""The study of the papers' rows on a tiny network."""

import json
from importlib import import_module
from pathlib import Path

import pytest
import rows_study

from probattn.tasks import load_task

EXTENSIONS = Path(__file__).resolve().parents[2] / "docs" / "_extensions"


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@pytest.mark.parametrize("method", [[], ["attention.method=deterministic", "repulsion.weight=0.1"]])
def test_a_recipe_is_trained_and_measured_beside_its_baseline(recipe, tmp_path, monkeypatch, method):
    monkeypatch.setattr(rows_study, "ROWS", {str(recipe): ("accuracy",)})
    keys = ["training.epochs=null", "training.steps=2", "data.limits={train: 60, test: 30}", *method]
    output = tmp_path / "rows.json"
    rows_study.STUDY(folder=tmp_path / "runs", seeds=2, output=output, set_=keys).main()
    content = json.loads(output.read_text(encoding="utf-8"))
    assert [run["seed"] for run in content["runs"]] == [0, 1]
    found = content["summary"][str(recipe)]
    assert found["sizes"]["training"] == 60
    assert set(found["scores"]["test"]) == {"deterministic", "method"}
    accuracy = found["scores"]["test"]["deterministic"]["accuracy"]
    assert accuracy["seeds"] == 2
    monkeypatch.syspath_prepend(EXTENSIONS)
    shown = import_module("measured_tables.rows").tables(content)
    assert f"{100 * accuracy['mean']:.1f}, " in shown and "2 seeds" in shown


def test_the_rows_are_recipes_and_the_papers_figures_are_of_rows(monkeypatch) -> None:
    monkeypatch.syspath_prepend(EXTENSIONS)
    paper = import_module("measured_tables.rows").PAPER
    for name in rows_study.ROWS:
        load_task(name)
    for (name, _), figures in paper.items():
        assert set(figures) <= set(rows_study.ROWS[name])
