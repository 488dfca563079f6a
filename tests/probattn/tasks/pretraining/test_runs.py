"""Runs on a tiny corpus: what is measured, shown, predicted, resumed, refused, and fine-tuned."""

from __future__ import annotations

import json
import shutil

import pytest
import runs
import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

from probattn.inference import SVGDDriver
from probattn.inference.records import read_records
from probattn.tasks import load_network, load_results, load_task, run_task, train
from probattn.tasks.errors import RunError
from probattn.tasks.pretraining.measures import area, detection_columns
from probattn.tasks.pretraining.vocabulary import learned_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    file = folder / "texts.yaml"
    file.write_text(runs.recipes(folder)["pretraining"], encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "texts"
    runs.succeeds("train", recipe, "--output", place, "--quiet")
    runs.succeeds("report", place)
    return place


def test_training_records_accuracies_beside_the_majority_rate(run):
    own, plain = (read_records(run / name) for name in ("metrics.jsonl", "baseline/metrics.jsonl"))
    particles = [record["particles"] for record in own if record.get("particles")]
    assert particles and all(
        len(found) == 3 and all(".layer.0." in name for name in found) for found in particles
    )
    assert not any(record.get("particles") for record in plain)
    for record in (record for record in own if record["kind"] == "validation"):
        assert 0 < record["majority"] < 1 and 0 <= record["accuracy"] <= 1


def test_measures_are_those_of_every_token(run):
    """Against scikit-learn's, over the tokens of the test passages."""
    sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    results, task, trained = load_results(run), run_task(run), load_network(run)
    task.tokenizer = trained.codec
    scores, truth, loss, right, masked = [], [], 0.0, 0, 0
    rows = sorted(task.test, key=lambda row: len(row["original_ids"]))
    for batch in task.judge.replaced(trained, rows):
        with torch.no_grad():
            logits = trained.net(**batch.inputs).logits
        scores.append(logits[batch.counted])
        truth.append(batch.corrupted.replaced[batch.counted])
        known = batch.corrupted.targets >= 0
        picked = batch.corrupted.logits[known].log_softmax(dim=-1)
        targets = batch.corrupted.targets[known]
        loss -= picked.gather(1, targets[:, None]).sum().item()
        right += int((picked.argmax(dim=-1) == targets).sum())
        masked += len(targets)
    score, true = torch.cat(scores).numpy(), torch.cat(truth).numpy()
    found = results.score("repulsive", "test").values
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, score > 0))
    assert found["balanced_accuracy"] == pytest.approx(sklearn.balanced_accuracy_score(true, score > 0))
    assert found["majority"] == pytest.approx(1 - true.mean())
    assert found["margin"] == pytest.approx(found["accuracy"] - found["majority"])
    assert found["auroc"] == pytest.approx(sklearn.roc_auc_score(true, score), abs=0.1)  # in steps
    probability = torch.cat(scores).double().sigmoid().numpy()
    assert found["nll"] == pytest.approx(sklearn.log_loss(true, probability), rel=1e-5)
    assert found["generator_accuracy"] == pytest.approx(right / masked)
    assert found["generator_perplexity"] == pytest.approx(torch.tensor(loss / masked).exp().item(), rel=1e-4)


def test_the_area_in_steps_is_the_area():
    sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    draw = torch.Generator().manual_seed(0)
    truth = torch.rand(40, 20, generator=draw) < 0.2
    logits = torch.randn(40, 20, generator=draw) * 2 + truth
    columns = detection_columns(logits[None], truth, torch.ones_like(truth), 10)
    exact = sklearn.roc_auc_score(truth.flatten().numpy(), logits.flatten().numpy())
    assert area(columns["scores"].sum(dim=0).double()) == pytest.approx(exact, abs=2e-3)
    assert area(torch.zeros(2, 4)) is None


def test_the_page_shows_tokens_and_heads(run):
    results = load_results(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Which tokens were replaced?" in page and "Do the heads differ?" in page
    assert len(results.samples) == 2 and 'class="judged' in page
    for sample in results.samples:
        assert all(token.masked for token in sample if token.original is not None)
        assert all(set(token.probabilities) == {"deterministic", "repulsive"} for token in sample)
    assert results.heads.models == ("start", "deterministic", "repulsive")
    assert [site.site for site in results.heads.sites if site.model == "repulsive"] == [
        "electra.encoder.layer.0.attention.self"
    ]


def test_the_discriminator_is_a_network_of_transformers_that_recipes_take(run, tmp_path):
    net = AutoModelForPreTraining.from_pretrained(run / "model")
    trained = load_network(run)
    text = "the film was good"
    codec = AutoTokenizer.from_pretrained(run / "model")
    inputs = codec(text, return_tensors="pt")
    with torch.no_grad():
        expected = net(**inputs).logits.sigmoid()[0, 1:-1]
        assert torch.equal(trained.program(dict(inputs)), net(**inputs).logits)
    (answer,) = map(json.loads, runs.succeeds("predict", run, text, "--json").splitlines())
    assert [token["replaced"] for token in answer["tokens"]] == pytest.approx(expected.tolist(), abs=1e-6)
    runs.write_reviews(tmp_path / "reviews.csv")
    classifier = tmp_path / "classifier.yaml"
    classifier.write_text(
        f"data: {{train: {tmp_path}/reviews.csv, max_length: 16}}\nnetwork: {{name: {run}/model}}\n"
        "attention: {method: deterministic}\ntraining: {steps: 1, batch_size: 8, device: cpu}\n",
        encoding="utf-8",
    )
    program = load_task(classifier).program()
    for name, weight in net.electra.state_dict().items():
        assert torch.equal(program.net.electra.state_dict()[name], weight), name


@pytest.mark.parametrize(
    ("keys", "models"),
    [
        (["attention.method=babn"], ["bayesian_mean", "bayesian_expectation"]),
        (["alignment.method=ct"], ["aligned"]),
        (["disagreement={method: parameters}", "pretraining.join=true"], ["regularised"]),
    ],
)
def test_other_methods_train_and_report(recipe, run, tmp_path, keys, models):
    keys = (*keys, "repulsion=null", "training.steps=2", "report.baseline=false", "report.head_texts=0")
    place = runs.trained(recipe, tmp_path / "run", *keys)
    runs.succeeds("report", place, "--baseline", run / "baseline")
    results = load_results(place)
    assert [score.model for score in results.scores] == ["deterministic", *models]
    if "bayesian_mean" in models:
        mean, expected = (results.score(model, "test").values for model in models)
        assert mean["nll"] != expected["nll"] and len(results.health) == 2


class InterruptedRunError(Exception):
    pass


def test_a_run_that_is_killed_in_mid_epoch_ends_as_if_it_had_not_been(recipe, tmp_path, monkeypatch):
    """In its second pass over the corpus; figures to the last digit."""
    batch = "training.batch_size=16"
    stream = load_task(recipe).stream
    per_epoch = -(-len(stream) // 16)
    at = per_epoch + 2
    keys = ("report.baseline=false", batch, f"training.steps={2 * per_epoch + 2}")
    keys += (f"training.checkpoint_every={at}", "training.log_every=1")
    task = load_task(recipe, keys)
    assert per_epoch > 3
    train(task, tmp_path / "whole", quiet=True)

    driver = type(task).driver

    def stopping(self, program, **options):
        def stop(record, _):
            if record["kind"] == "train" and record["step"] == at + 1:
                raise InterruptedRunError

        return driver(self, program, **options, callbacks=[stop])

    monkeypatch.setattr(type(task), "driver", stopping)
    with pytest.raises(InterruptedRunError):
        train(load_task(recipe, keys), tmp_path / "cut", quiet=True)
    monkeypatch.setattr(type(task), "driver", driver)
    train(load_task(recipe, keys), tmp_path / "cut", resume=True, quiet=True)
    one, other = (read_records(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut"))
    timed = ("seconds", "time")
    assert [{k: v for k, v in each.items() if k not in timed} for each in one] == [
        {k: v for k, v in each.items() if k not in timed} for each in other
    ]
    nets = [load_network(tmp_path / name) for name in ("whole", "cut")]
    for part in ("net", "generator"):
        states = [getattr(each.program, part).state_dict() for each in nets]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_recipe_chooses_its_driver(recipe):
    task = load_task(recipe)
    driver = task.driver(task.program(), **task.driver_options(None))
    assert isinstance(driver, SVGDDriver)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pretraining.texts=[none.txt]", "none.txt: no such file"),
        ("pretraining.max_length=17", "expected at most 16, the positions of the network"),
        ("pretraining.test_fraction=1e-9", "none is left for test"),
        ("network.heads=3", "width: expected a multiple of the heads (3), got 16"),
        ("training.epochs=2", "training.epochs"),
        ("repulsion.layers=[5]", "expected numbers from -2 to 1"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(recipe, tmp_path, override, words):
    place = tmp_path / "out"
    assert words in runs.refused("train", recipe, "--output", place, "--quiet", "--set", override)
    assert not place.exists()


def test_tokenizers_without_a_mask_token_and_damaged_runs_are_refused(recipe, run, tmp_path):
    words = runs.refused(
        "train",
        recipe,
        "--output",
        tmp_path / "out",
        "--quiet",
        "--set",
        f"pretraining.tokenizer={recipe.parent}/network",
    )
    assert "expected a tokenizer with a mask_token" in words
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "model" / "generator")
    assert "generator" in runs.refused("predict", copy, "the film")


def test_networks_of_different_vocabularies_are_not_compared(run):
    task = run_task(run)
    task.tokenizer = learned_tokenizer(lambda: ["another text"], 40)
    with pytest.raises(RunError, match="expected a network with the vocabulary of the other one"):
        task.network(run)


@pytest.mark.parametrize("text", ["", "good " * 40])
def test_texts_that_cannot_be_read_are_refused(run, text):
    assert "expected a text of 1 to 14 tokens" in runs.refused("predict", run, text or "\u200b")
