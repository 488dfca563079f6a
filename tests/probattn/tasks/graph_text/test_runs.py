"""Runs on tiny graphs: what is measured, shown, predicted and refused."""

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import runs
import torch

from probattn.data import GraphText, GraphTexts, read_graph_texts, read_relations
from probattn.inference.records import read_records
from probattn.metrics.functional import bleu, meteor, name_coverage, repeated_clauses, rouge
from probattn.recipes import load_any_recipe
from probattn.tasks import load_network, load_results, run_task
from probattn.tasks.graph_text.page import graph_drawing, marked
from probattn.tasks.graph_text.recipe import GraphTextDataRecipe
from probattn.tasks.graph_text.results import (
    MEASURES,
    GraphTextSample,
    figures,
    pieces,
    row_to_write,
    text_columns,
    token_columns,
)
from probattn.tasks.graph_text.task import GraphTextTask

pytest.importorskip("nltk", reason="needs nltk (the extra 'text_metrics')")
pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'text_metrics')")

ROW = "the film\tgood plot ; bad cast\t<method> <task>\t0 1 1"


@pytest.fixture(scope="module")
def recipe(recipe_of):
    return recipe_of("graph_text")


@pytest.fixture(scope="module")
def run(reported):
    return reported("graph_text")


def texts_of(recipe, part):
    names = read_relations(recipe.parent / "relations.vocab")
    return read_graph_texts(recipe.parent / f"{part}.tsv", names)


def test_training_records_what_perplexity_is_made_of(run):
    own, plain = (read_records(run / name) for name in ("metrics.jsonl", "baseline/metrics.jsonl"))
    assert any(record.get("particles") for record in own)
    assert not any(record.get("particles") for record in plain)
    for record in own:
        if record["kind"] == "validation":
            assert record["nll"] > 0 and record["tokens"] > 5


def test_measures_are_those_of_the_texts_that_are_kept(run, recipe):
    results = load_results(run)
    assert [score.model for score in results.scores] == ["deterministic", "repulsive"]
    lines = [json.loads(line) for line in (run / "texts.jsonl").read_text().splitlines()]
    references = [row.surface for row in texts_of(recipe, "test").rows]
    assert [line["reference"] for line in lines] == references
    for score in results.scores:
        written = [line[score.model] for line in lines]
        found = score.values
        assert 100 * found["bleu4"] == pytest.approx(bleu(written, references).score)
        assert found["bleu1"] >= found["bleu2"] >= found["bleu4"]
        assert found["rougeL"] == pytest.approx(rouge(written, references)[:, 2, 2].mean().item())
        names = [line["entities"] for line in lines]
        assert found["entities"] == pytest.approx(name_coverage(written, names).mean().item())
        assert found["repeated_clauses"] == pytest.approx(repeated_clauses(written).mean().item())
    assert "without synonyms" in results.signature or "WordNet" in results.signature


def test_every_measure_of_written_texts_is_that_of_another_package_or_counted_by_hand():
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU

    row = GraphText(
        "t", ("fast parser", "corpus", "cat"), ("x", "x", "y"), (), "we train <x_0> on <x_1> today ."
    )
    other = replace(row, text="the <y_2> sat on the old mat in the sun .")
    texts = GraphTexts((row, other), (), "made up")
    repeated = "the cat sat on the mat , the cat sat on the mat ."
    written = ["on a corpus we train fast parser .", repeated]
    references = ["we train fast parser on corpus today .", "the cat sat on the old mat in the sun ."]
    true = torch.ones(2, 3, dtype=torch.bool)
    tokens = token_columns(torch.full((1, 2, 3), 0.25).log(), true, true)
    found = figures(text_columns(written, texts, None) | tokens)
    for order in range(1, 5):
        score = BLEU(max_ngram_order=order).corpus_score(written, [references]).score
        assert 100 * found[f"bleu{order}"] == pytest.approx(score), order
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    scores = [scorer.score(*pair) for pair in zip(references, written, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert found[name] == pytest.approx(sum(each[name].fmeasure for each in scores) / 2)
    assert found["meteor"] == pytest.approx(meteor(written, references, None).mean().item()) != 0
    assert found["entities"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found["repeated_runs"] == pytest.approx(3 / 11 / 2)  # of 11 runs of four words in the second text
    assert found["repeated_clauses"] == pytest.approx(1 / 2 / 2)
    assert found["perplexity"] == pytest.approx(4)
    assert found.keys() == {*MEASURES, "token_accuracy", "words"}


def test_perplexity_is_the_networks_own(run, recipe):
    task, results = run_task(run), load_results(run)
    trained = load_network(run)
    nll, tokens = 0.0, 0
    for batch in task.sized_batches(trained, texts_of(recipe, "test"), 4):
        with torch.no_grad():
            logits = trained.net(**{name: value for name, value in batch.items() if name != "labels"}).logits
        real = batch["labels"] >= 0
        nll -= logits.gather(2, batch["labels"].clamp_min(0)[..., None])[..., 0][real].sum().item()
        tokens += int(real.sum())
    expected = pytest.approx(math.exp(nll / tokens), rel=1e-4)
    assert results.score("repulsive", "test").values["perplexity"] == expected


def test_the_page_shows_texts_with_their_graphs(run):
    results = load_results(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert len(results.samples) == 2 and page.count('class="chart knowledge"') == 2
    for sample in results.samples:
        assert sample.title in page and marked(sample.reference) in page
        copied = next(piece for piece in sample.reference if piece.entity is not None)
        assert f'title="entity {copied.entity}"><bdi>{copied.words}</bdi></mark>' in page
        assert {piece.entity for piece in sample.reference} - {None} == {0, 1}
    assert results.signature in page and "Do the heads differ?" in page
    assert results.heads.models == ("start", "deterministic", "repulsive")
    assert (results.heads.texts, results.heads.masked_texts) == (4, 2)
    assert all(
        "encoder.graph.blocks" in site.site for site in results.heads.sites if "decoder" not in site.site
    )


def test_a_drawing_has_an_entity_a_line_and_an_arrow_a_relation():
    row = GraphText("t", ("a < b", "c", "d"), ("x", "x", "y"), ((0, 0, 2), (1, 0, 1)), "<x_0> .")
    sample = GraphTextSample(
        title=row.title,
        entities=row.entities,
        types=row.types,
        relations=((0, "USED-FOR", 2), (1, "PART-OF", 1)),
        reference=pieces(row.tokens(), row),
        texts={},
    )
    root = ET.fromstring(str(graph_drawing(sample, {"det": {0, 2}, "bay": set()})))
    names = [element.text for element in root.iter("text") if element.get("class") == "entity"]
    assert names == ["a < b", "c", "d"]
    assert len([element for element in root.iter("g") if element.get("class") == "relation"]) == 2
    assert len([element for element in root.iter("circle") if element.get("class") == "dot det"]) == 2
    assert len([element for element in root.iter("circle") if element.get("class") == "dot absent"]) == 4
    assert "a < b USED-FOR d" in root.get("aria-label")
    kinds = [element.text for element in root.iter("text") if element.get("class") == "kind"]
    assert kinds == ["part of", "used for"]


def test_latent_attention_and_coverage_train_and_report(recipe, run, tmp_path):
    keys = ("attention.method=babn", "network.coverage=0.5", "repulsion=null", "training.steps=2")
    place = runs.trained(recipe, tmp_path / "run", *keys, "report.baseline=false", "report.head_examples=0")
    runs.succeeds("report", place, "--baseline", run / "baseline")
    results = load_results(place)
    models = ["bayesian_mean", "bayesian_expectation"]
    assert [score.model for score in results.scores] == ["deterministic", *models]
    mean, expected = (results.score(model, "test").values for model in models)
    assert mean["bleu4"] == expected["bleu4"] and mean["perplexity"] != expected["perplexity"]
    assert len(results.health) == 3
    assert any(record.get("factors", 0) < 0 for record in read_records(place / "metrics.jsonl"))


def test_lines_are_written_about(run):
    out = runs.succeeds("predict", run, ROW, "--json")
    (answer,) = map(json.loads, out.splitlines())
    assert answer["text"] == ROW and set(answer["copied"]) <= {"good plot", "bad cast"}
    assert all(name in answer["written"] for name in answer["copied"])


def test_answers_are_what_the_network_writes(run, monkeypatch):
    """With the network's own tokens, of which some are copies whatever it has learned."""
    task, network = run_task(run), load_network(run)
    row = row_to_write(ROW, network.codec)
    texts = GraphTexts((row,), network.codec.relations, "given")
    real = task.written(network, texts)
    (answer,) = task.answering.predict(run, [ROW])
    assert answer["written"] == row.named(real[0])
    monkeypatch.setattr(GraphTextTask, "written", lambda *_: [["the", 1, "was", 0, 1]])
    (answer,) = task.answering.predict(run, [ROW])
    assert answer == {
        "text": ROW,
        "written": "the bad cast was good plot bad cast",
        "copied": ["good plot", "bad cast"],
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ROW.replace("<task>", "<metal>"), "expected entities of the types method, task"),
        (ROW.replace("0 1 1", "0 1 2"), "relations between entities 0 to 1, got entity 2"),
        ("the film", "expected 4 columns with tabs between them (title, entities, types, relations), got 1"),
    ],
)
def test_lines_that_do_not_fit_are_refused(run, line, words):
    assert words in runs.refused("predict", run, line)


def test_a_line_of_a_file_that_does_not_fit_is_named(run, tmp_path):
    place = tmp_path / "graphs.txt"
    place.write_text(f"{ROW}\n{ROW.replace('0 1 1', '0 1 2')}\n", encoding="utf-8")
    said = runs.refused("predict", run, "--input", str(place))
    assert f"{place} line 2: " in said and "got entity 2" in said


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("graph_text.train=none.tsv", "graph_text.train: "),
        ("graph_text.relations=none.vocab", "none.vocab: no such file"),
        ("graph_text.min_frequency=999", "words that stand in it 999 times, found none"),
        ("network.width=9", "an even multiple of heads (2), got 9"),
        ("repulsion.layers=[3]", "expected numbers from -1 to 0"),
        ("attention={method: babn, upward: positions}", "upward='positions'"),
        ("graph_text={validation: null, limits: {validation: 24}}", "to be held out"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(recipe, tmp_path, override, words):
    place = tmp_path / "out"
    if override.startswith("graph_text={"):
        keys = ["--set", "graph_text.validation=null", "--set", "graph_text.limits.validation=24"]
    else:
        keys = ["--set", override]
    assert words in runs.refused("train", recipe, "--output", place, "--quiet", *keys)
    assert not place.exists()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("nltk", "METEOR: expected the package nltk"),
        ("rouge_score.rouge_scorer", "ROUGE: expected the package rouge_score"),
    ],
)
def test_a_missing_package_is_named_before_training(recipe, tmp_path, monkeypatch, module, words):
    monkeypatch.setitem(sys.modules, module, None)
    said = runs.refused("train", recipe, "--output", tmp_path / "out", "--quiet")
    assert words in said and "pip install 'probattn[text_metrics]'" in said


def test_a_damaged_vocabulary_is_refused(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "model" / "vocabulary.json").write_text("{}")
    assert "vocabulary.json" in runs.refused("predict", copy, ROW)


def test_held_out_texts_are_not_trained_on(recipe):
    found = load_any_recipe(
        recipe, ["graph_text.validation=null", "graph_text.limits.validation=5"]
    ).graph_text.load()
    assert {role: len(texts) for role, texts in found.items()} == {"train": 19, "validation": 5, "test": 6}
    assert not set(found["train"].rows) & set(found["validation"].rows)


def test_paths_are_made_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(
        "graph_text: {folder: here, test: sub/test.tsv, relations: ./my.vocab}\n"
    )
    recipe = load_any_recipe(tmp_path / "r.yaml")
    data = recipe.graph_text
    assert data.folder == str(tmp_path / "here") and data.test == str(tmp_path / "sub" / "test.tsv")
    assert data.relations == str(tmp_path / "my.vocab")  # a folder of its own
    assert GraphTextDataRecipe(folder="here", train="./my.tsv").file("train") == Path("my.tsv")
    assert data.train == "preprocessed.train.tsv"
    assert data.file("train") == tmp_path / "here" / "preprocessed.train.tsv"
