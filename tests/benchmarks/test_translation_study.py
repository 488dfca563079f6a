"""The study of translation over seeds, on a tiny network and a made-up language."""

import json

import pytest
import torch
import typer

pytest.importorskip("sentencepiece", reason="needs sentencepiece (the extra 'translation')")
pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")

import translation_study

from probattn.data import PairCollate, TokenizedPairs
from probattn.recipes import load_any_recipe
from probattn.tasks import load_network


def test_every_method_has_every_seed_and_is_run_once(translation_recipe, tmp_path):
    def run():
        translation_study.STUDY(
            comparison="heads",
            folder=tmp_path,
            seeds=2,
            methods="plain,svgd_first",
            recipe=str(translation_recipe),
            output=tmp_path / "translation.json",
            rounds=2,
            set_=["training.steps=2"],
        ).main()
        return json.loads((tmp_path / "translation.json").read_text(encoding="utf-8"))

    first = run()
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("measured.json")}
    assert len(stamps) == len(first["runs"]) == 4
    assert run() == first and {file: file.stat().st_mtime_ns for file in stamps} == stamps
    runs = {(run["method"], run["seed"]): run for run in first["runs"]}
    for seed in (0, 1):
        gap = runs["svgd_first", seed]["perplexity"] - runs["plain", seed]["perplexity"]
        assert gap != 0
    row = first["summary"]["svgd_first"]
    gaps = [runs["svgd_first", seed]["bleu"] - runs["plain", seed]["bleu"] for seed in (0, 1)]
    assert row["difference"]["bleu"]["mean"] == pytest.approx(sum(gaps) / 2)
    assert row["step_ratio"]["seeds"] == 2 and row["step_seconds"]["mean"] > 0
    assert "step_ratio" not in first["summary"]["plain"]


def test_the_methods_are_what_they_are_called(tmp_path):
    found = {}
    for job in translation_study.STUDY(comparison="heads", folder=tmp_path, seeds=1).jobs():
        method, recipe = job.head["method"], load_any_recipe(job.recipe, job.keys)
        assert job.recipe == "multi30k_reduced"
        assert recipe.training.seed == 0
        found[method] = [(type(part).__name__, part.layers) for part in recipe.methods()]
    assert found == {
        "plain": [],
        "disagreement": [("DisagreementAttention", "all")],
        "svgd": [("RepulsiveAttention", "all")],
        "svgd_first": [("RepulsiveAttention", "first")],
    }


def test_parts_are_what_they_are_called(tmp_path):
    found = {}
    for job in translation_study.STUDY(comparison="parts", folder=tmp_path, seeds=1).jobs():
        recipe = load_any_recipe(job.recipe, job.keys)
        assert recipe.training.steps == 1500
        found[job.head["method"]] = [(part.projections, part.layers) for part in recipe.methods()]
    assert found.pop("plain") == [] and found.pop("all") == [(("query", "key", "value"), "all")]
    for name, [(projections, layers)] in found.items():
        of_one = name in {"query", "key", "value"}
        assert (projections, layers) == (((name,), "all") if of_one else (("query", "key", "value"), name))
    assert len(found) == 8


def test_latent_methods_are_what_they_are_called(tmp_path):
    found = {}
    for job in translation_study.STUDY(comparison="latent", folder=tmp_path, seeds=1).jobs():
        method, recipe = job.head["method"], load_any_recipe(job.recipe, job.keys)
        assert job.recipe == "multi30k_lstm_reduced"
        made = [type(part).__name__ for part in recipe.methods()]
        found[method] = (recipe.attention.method, recipe.attention.estimator, made, recipe.training.kl_weight)
    assert found["plain"][::2] == ("deterministic", [])
    assert found["va_enumerate"] == ("variational", "enumerate", [], 1.0)
    assert found["va_sample"] == ("variational", "sample", [], 1.0)
    assert found["bam"][0] == "bam" and found["babn"][0] == "babn"
    assert found["bam"][2] == found["babn"][2] == ["BayesianAttention"]
    for job in translation_study.STUDY(comparison="longer", folder=tmp_path, seeds=1).jobs():
        recipe = load_any_recipe(job.recipe, job.keys)
        assert recipe.attention.method == found[job.head["method"]][0]
        assert (recipe.training.steps, recipe.training.early_stopping.patience) == (12000, 3)


def test_latent_attention_is_compared_by_quality(translation_recipe, tmp_path):
    keys = ["network={name: lstm, width: 8, layers: 1, heads: 1}", "repulsion=null", "training.steps=2"]
    translation_study.STUDY(
        comparison="latent",
        folder=tmp_path,
        seeds=1,
        methods="plain,va_sample,babn",
        recipe=str(translation_recipe),
        output=tmp_path / "latent.json",
        rounds=1,
        set_=keys,
    ).main()
    content = json.loads((tmp_path / "latent.json").read_text(encoding="utf-8"))
    runs = {run["method"]: run for run in content["runs"]}
    assert runs["va_sample"]["parameters"] > runs["babn"]["parameters"] > runs["plain"]["parameters"]
    assert all("overlap" not in run and run["perplexity"] > 1 for run in runs.values())
    assert content["summary"]["babn"]["step_ratio"]["mean"] > 0


def test_heads_are_compared_over_all_calls_and_real_tokens(translation_run, translation_recipe):
    """Against the inputs of the output projections, of which each network has three with two heads."""
    trained = load_network(translation_run)
    test = load_any_recipe(str(translation_recipe)).translation.load()["test"]
    network = trained.net.model
    modules = [network.encoder.layers[0].self_attn]
    modules += [network.decoder.layers[0].self_attn, network.decoder.layers[0].encoder_attn]
    given = []
    keep = {"hook": lambda _, args, __: given.append(args[0])}
    handles = [module.out_proj.register_forward_hook(**keep) for module in modules]
    found = translation_study.heads(trained, test)
    for handle in handles:
        handle.remove()
    rows = TokenizedPairs(test, trained.codec)
    batch = PairCollate()([rows[row] for row in range(len(rows))])
    gaps, lengths = [], []
    for outputs in given[-3:]:  # one pass may precede, which finds the calls
        mask = batch[
            "attention_mask" if outputs.shape[1] == batch["input_ids"].shape[1] else "decoder_attention_mask"
        ]
        one, other = outputs.unflatten(-1, (2, -1))[mask.bool()].unbind(dim=1)
        gaps.append((one - other).norm(dim=-1).mean().item())
        lengths.append(torch.cat([one, other]).norm(dim=-1).mean().item())
    assert found["distance"] == pytest.approx(sum(gaps) / 3, rel=1e-4)
    ratios = [gap / length for gap, length in zip(gaps, lengths, strict=True)]
    assert found["relative_distance"] == pytest.approx(sum(ratios) / 3, rel=1e-4)
    assert 0 < found["overlap"] <= 1


def test_what_it_does_not_know_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match=r"methods: expected some of plain, .*, got 'magic'"):
        translation_study.STUDY(comparison="heads", folder=tmp_path, methods="magic")
    with pytest.raises(
        typer.BadParameter,
        match=r"comparison: expected one of heads, parts, latent, longer, got 'magic'",
    ):
        translation_study.STUDY(comparison="magic", folder=tmp_path)
    with pytest.raises(typer.BadParameter, match=r"recipe: expected one of translation, demo is not"):
        translation_study.STUDY(comparison="heads", folder=tmp_path, recipe="demo")
