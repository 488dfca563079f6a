"""The study of pre-training on a tiny network, and its table."""

import json
import sys
from pathlib import Path

import pretraining_study
import pytest
import runs

from probattn.recipes import load_any_recipe
from probattn.sites.repulsive import RepulsiveAttention

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


def test_every_variant_is_pretrained_fine_tuned_and_compared(tmp_path, monkeypatch):
    recipe = tmp_path / "tiny.yaml"
    text = runs.recipes(tmp_path)["pretraining"]
    recipe.write_text(
        text.replace("steps: 6", "steps: 2").replace("positions: 16", "positions: 64"), encoding="utf-8"
    )
    tasks = f"{tmp_path}/reviews.csv,{tmp_path}/reviews.csv:8"
    options = {"recipe": str(recipe), "tasks": tasks, "steps": 1, "rates": "1e-3,1e-2"}
    options["output"] = tmp_path / "found.json"
    pretraining_study.STUDY(folder=tmp_path / "runs", seeds=1, **options).main()
    content = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in content["runs"]] == list(pretraining_study.VARIANTS)
    for run in content["runs"]:
        assert run["reviews_rate"] in (1e-3, 1e-2)
        assert 0 <= run["reviews_accuracy"] <= 1 and 0 <= run["reviews_validation"] <= 1
        assert "reviews-8_accuracy" in run
        given = tmp_path / "runs" / run["variant"] / "seed-0" / "tuned"
        assert load_any_recipe(given / "reviews-8-0.01" / "recipe.yaml").data.limits.train == 8
    summary = content["summary"]
    assert set(summary["nothing"]) == {"reviews_accuracy", "reviews-8_accuracy", "difference"}
    assert summary["plain"]["majority"]["mean"] > 0.5 and summary["paper"]["relative"]["mean"] > 0
    own, plain = (summary[name]["nll"]["mean"] for name in ("paper", "plain"))
    assert summary["paper"]["difference"]["nll"]["mean"] == pytest.approx(own - plain)
    assert pretraining_study.table(summary).row_count == len(pretraining_study.MEASURES) + 2
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "docs" / "_extensions")
    from measured_tables import pretraining

    monkeypatch.setattr(pretraining, "TASKS", {"reviews": "reviews"})
    shown = pretraining.tables(content)
    assert shown.count("\n|") == 6 and "repulsive, weight 0.1" in shown and "nan" not in shown
    alone = f"{100 * summary['nothing']['reviews_accuracy']['mean']:.2f}"
    assert shown.splitlines()[-1].startswith(f"| not pre-trained |  |  |  |  | {alone} | ")
    monkeypatch.setattr(pretraining, "TASKS", {"reviews": "reviews", "reviews-8": "8 reviews"})
    first, second = pretraining.tables(content).split(
        "Test accuracy after fine-tuning, and differences to the pre-trained network:"
    )
    assert (
        first.count("\n|") == 5 and second.count("\n|") == 4
    )  # without the network that was not pre-trained
    cells = second.splitlines()[-1].split(" | ")
    gap = summary["nothing"]["difference"]["reviews-8_accuracy"]["mean"]
    assert cells[0] == "| 8 reviews" and cells[-1] == f"{100 * gap:+.2f} |" and len(cells) == 8
    assert sys.modules["measured_tables.pretraining"] is pretraining


@pytest.mark.parametrize("recipe", ["electra_reduced", "electra_small"])
def test_the_variants_are_recipes_of_repulsion_in_the_first_layer(recipe):
    weights = {"plain": None, "weak": 1e-3, "paper": 0.1, "nothing": None}
    for name, keys in pretraining_study.VARIANTS.items():
        methods = load_any_recipe(recipe, keys).methods()
        assert [method.repulsion for method in methods] == ([] if weights[name] is None else [weights[name]])
        assert all(isinstance(method, RepulsiveAttention) and method.layers == (0,) for method in methods)
