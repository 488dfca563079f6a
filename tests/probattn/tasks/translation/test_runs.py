"""Runs on a small parallel text: records, measures, predictions, and what is refused."""

import json
import shutil

import pytest
import runs

from probattn.inference.records import read_records
from probattn.metrics.functional import bleu
from probattn.recipes import load_any_recipe
from probattn.tasks import load_network, load_results, run_task

pytest.importorskip("sentencepiece", reason="needs sentencepiece (the extra 'translation')")
pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")


def kinds(records, kind):
    return [record for record in records if record["kind"] == kind]


def test_train_fits_the_network_and_its_baseline(translation_run):
    own, plain = (
        read_records(translation_run / name) for name in ("metrics.jsonl", "baseline/metrics.jsonl")
    )
    assert len(kinds(own, "train")[-1]["particles"]) == 3 * 3
    assert "particles" not in kinds(plain, "train")[-1]
    for record in kinds(own, "validation"):
        assert record["nll"] > 0 and record["tokens"] > 4 and 0 <= record["correct"] <= record["tokens"]


def test_evaluate_and_report(translation_run):
    runs.succeeds("report", translation_run)
    results = load_results(translation_run)
    assert [score.model for score in results.scores] == ["deterministic", "repulsive"]
    assert results.languages == ("en", "de") and results.data[0].size == 12 and len(results.samples) == 3
    assert "case:mixed" in results.signature and "tok:13a" in results.signature
    lines = [json.loads(line) for line in (translation_run / "translations.jsonl").read_text().splitlines()]
    references = [line["reference"] for line in lines]
    for score in results.scores:
        assert score.values["bleu"] == bleu([line[score.model] for line in lines], references).score / 100
        assert score.values["perplexity"] > 1 and 0 <= score.values["token_accuracy"] <= 1
    gaps = {gap.measure: gap.value for gap in results.differences}
    deterministic, repulsive = (score.values for score in results.scores)
    assert gaps.keys() == {"bleu", "token_accuracy", "perplexity"}
    assert all(value == pytest.approx(repulsive[name] - deterministic[name]) for name, value in gaps.items())
    assert len(results.listings[0].rows) == 2 and all(row[-1] for row in results.listings[0].rows)
    for sample in results.samples:
        found = next(line for line in lines if line["source"] == sample.source)
        assert sample.translations == {name: found[name] for name in ("deterministic", "repulsive")}
    page = (translation_run / "report.html").read_text(encoding="utf-8")
    assert "Repulsive" in page and results.signature in page and results.samples[0].reference in page


def test_predict_translates(translation_run, command):
    plain = command("predict", translation_run, "a dog runs .", "a cat .")
    assert plain.exit_code == 0 and len(plain.output.splitlines()) == 2
    as_json = command("predict", translation_run, "a dog runs .", "a cat .", "--json")
    found = [json.loads(line) for line in as_json.output.splitlines()]
    assert [line["text"] for line in found] == ["a dog runs .", "a cat ."]
    assert [line["translation"] for line in found] == plain.output.splitlines()
    assert "expected no --pair" in runs.refused("predict", translation_run, "a", "--pair", "b")


def test_what_is_deterministic_itself_is_not_compared(translation_run, run, tmp_path):
    for whole in (translation_run, run):
        plain = tmp_path / whole.name
        shutil.copytree(whole / "baseline", plain)
        shutil.copy(whole / "recipe.yaml", plain)
        words = f"expected a run that is compared with it, {plain} is deterministic itself"
        assert words in runs.refused("evaluate", plain, "--baseline", whole / "baseline")
        assert not (plain / "metrics.json").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("translation.train=/no/such", ["translation.train: /no/such.en: no such file"]),
        ("translation.subwords=5000", ["expected at most", "subwords of 80 sentences, got 5000"]),
        ("translation.subwords=9", ["expected at least", "one for each character, got 9"]),
        ("translation.test=null", ["translation", "test: expected a path without ending"]),
        ("attention.upward=positions", ["decoder", "upward='positions'", "use upward='heads'"]),
        ("repulsion.layers=[3]", ["expected numbers from -1 to 0"]),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(translation_recipe, tmp_path, override, words):
    options = ["--set", "attention.method=babn"] if "upward" in override else []
    place = tmp_path / "out"
    said = runs.refused(
        "train", translation_recipe, "--output", place, "--quiet", "--set", override, *options
    )
    assert all(word in said for word in words)
    assert not place.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: "", "train.de: expected text, got an empty file"),
        (lambda text: text + "noch einer .\n", "expected a translation for each of 40 sentences, got 41"),
        (lambda text: "\n" + text.split("\n", 1)[1], "got a blank one in line 1 (de)"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(
    translation_recipe, pairs_folder, tmp_path, change, words
):
    copy = tmp_path / "pairs"
    shutil.copytree(pairs_folder, copy)
    file = copy / "train.de"
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
    options = runs.overrides(f"translation.train={copy}/train")
    assert words in runs.refused("train", translation_recipe, "--output", tmp_path / "out", *options)


def test_a_sentence_beyond_the_limit_is_refused_or_cut(translation_recipe, pairs_folder, command, tmp_path):
    copy, out = tmp_path / "pairs", tmp_path / "out"
    shutil.copytree(pairs_folder, copy)
    for language, word in (("en", "dog"), ("de", "Hund")):
        file = copy / f"train.{language}"
        file.write_text(file.read_text(encoding="utf-8") + f"{word} " * 50 + "\n", encoding="utf-8")
    overrides = (f"translation.train={copy}/train", "training.steps=1")
    options = ["--quiet", *runs.overrides(*overrides)]
    strict = ["--set", "translation.on_long=refuse"]
    words = "en: 1 of 41 sentences are longer than 40 tokens with their end (the longest, sentence 41, has "
    assert words in runs.refused("train", translation_recipe, "--output", out, *options, *strict)
    result = command("train", translation_recipe, "--output", out, *options)
    assert result.exit_code == 0 and "they are truncated" in result.output


def test_heads_are_compared(translation_run, translation_recipe, tmp_path):
    """Against what transformers' own network answers when a head's part of the output projection is zero."""
    copy = tmp_path / "copy"
    shutil.copytree(translation_run, copy)
    runs.succeeds("report", copy)
    results = load_results(copy)
    heads = results.heads
    assert heads.models == ("start", "deterministic", "repulsive") and heads.texts == results.data[0].size
    sites = [site.site for site in heads.sites if site.model == "repulsive"]
    assert len(sites) == 3 and all(site.lengths["query"] > 0 for site in heads.sites)
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "Do the heads differ?" in page and "Token accuracy without a head is measured over" in page
    trained = load_network(copy)
    test = load_any_recipe(str(translation_recipe)).translation.load()["test"]
    score = next(item for item in results.scores if item.model == "repulsive")
    assert heads.whole["repulsive"] == pytest.approx(score.values["token_accuracy"])
    layer = trained.net.model.decoder.layers[0].encoder_attn
    layer.out_proj.weight.data[:, 8:] = 0  # the second of two heads of 8
    sums = {name: column.sum().item() for name, column in run_task(copy).token_columns(trained, test).items()}
    drop = next(item for item in heads.drops if item.model == "repulsive" and "encoder_attn" in item.site)
    assert drop.accuracy[1] == pytest.approx(sums["correct"] / sums["tokens"])


def test_heads_are_left_out_where_nothing_kept_them_apart(translation_run, translation_recipe, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(translation_run, copy)
    recipe = (copy / "recipe.yaml").read_text(encoding="utf-8")
    (copy / "recipe.yaml").write_text(
        recipe.replace("head_examples: 64", "head_examples: 0"), encoding="utf-8"
    )
    runs.succeeds("evaluate", copy)
    assert load_results(copy).heads is None
