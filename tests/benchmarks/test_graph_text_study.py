"""The study of texts about graphs on a tiny network."""

import json

import graph_text_study
import pytest
import runs

from probattn.recipes import load_any_recipe
from probattn.sites import DisagreementAttention
from probattn.sites.repulsive import RepulsiveAttention


def test_every_variant_is_measured_and_compared_with_the_soft_one(tmp_path):
    for name in ("nltk", "sacrebleu"):
        pytest.importorskip(name, reason="needs the extra 'text_metrics'")
    runs.write_graph_texts(tmp_path)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(
        f"graph_text: {{folder: {tmp_path}, train: train.tsv, validation: val.tsv, test: test.tsv}}\n"
        "network: {width: 8, layers: 1, heads: 2, lstm_layers: 1}\nattention: {method: deterministic}\n"
        "repulsion: {layers: encoder}\ntraining: {steps: 2, batch_size: 8, device: cpu}\n"
        "search: {num_beams: 1, max_length: 5}\n",
        encoding="utf-8",
    )
    options = {"recipe": str(recipe), "output": tmp_path / "found.json"}
    graph_text_study.STUDY(folder=tmp_path / "runs", seeds=2, **options).main()
    content = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in content["runs"]] == ["soft", "cosine", "repulsive"] * 2
    for variant in ("cosine", "repulsive"):
        gap = content["summary"][variant]["difference"]["perplexity"]
        own = [run["perplexity"] for run in content["runs"] if run["variant"] == variant]
        soft = [run["perplexity"] for run in content["runs"] if run["variant"] == "soft"]
        assert gap["mean"] == pytest.approx(sum(own) / 2 - sum(soft) / 2) and gap["seeds"] == 2
    assert graph_text_study.table(content["summary"]).row_count == len(graph_text_study.MEASURES)


@pytest.mark.parametrize("recipe", ["agenda_reduced", "agenda_paper"])
def test_the_variants_are_recipes_of_the_methods_that_they_name(recipe):
    kinds = {"soft": (), "cosine": (DisagreementAttention,), "repulsive": (RepulsiveAttention,)}
    for name, keys in graph_text_study.VARIANTS.items():
        methods = load_any_recipe(recipe, keys).methods()
        assert tuple(type(method) for method in methods) == kinds[name]
        assert all(method.layers == "encoder" for method in methods)
