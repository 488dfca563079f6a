"""The study of pre-training on a tiny network, and its table."""

from __future__ import annotations

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
    recipe.write_text(text.replace("steps: 6", "steps: 2"), encoding="utf-8")
    classifier = tmp_path / "classifier.yaml"
    classifier.write_text(
        f"data: {{train: {tmp_path}/reviews.csv, max_length: 16}}\nattention: {{method: deterministic}}\n"
        "training: {batch_size: 8, device: cpu}\n",
        encoding="utf-8",
    )
    options = {"recipe": str(recipe), "classifier": classifier, "steps": 1, "output": tmp_path / "found.json"}
    pretraining_study.STUDY(folder=tmp_path / "runs", seeds=1, **options).main()
    content = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in content["runs"]] == list(pretraining_study.VARIANTS)
    summary = content["summary"]
    assert set(summary["nothing"]) == {"sst2_accuracy", "difference"}
    assert summary["plain"]["majority"]["mean"] > 0.5 and summary["paper"]["relative"]["mean"] > 0
    own, plain = (summary[name]["nll"]["mean"] for name in ("paper", "plain"))
    assert summary["paper"]["difference"]["nll"]["mean"] == pytest.approx(own - plain)
    assert pretraining_study.table(summary).row_count == len(pretraining_study.MEASURES)
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "docs" / "_extensions")
    from measured_tables import pretraining

    shown = pretraining.tables(content)
    assert shown.count("\n|") == 6 and "repulsive, weight 0.1" in shown and "nan" not in shown
    assert sys.modules["measured_tables.pretraining"] is pretraining


@pytest.mark.parametrize("recipe", ["electra_reduced", "electra_small"])
def test_the_variants_are_recipes_of_repulsion_in_the_first_layer(recipe):
    weights = {"plain": None, "weak": 1e-3, "paper": 0.1, "nothing": None}
    for name, keys in pretraining_study.VARIANTS.items():
        methods = load_any_recipe(recipe, keys).methods()
        assert [method.repulsion for method in methods] == ([] if weights[name] is None else [weights[name]])
        assert all(isinstance(method, RepulsiveAttention) and method.layers == (0,) for method in methods)
