"""Runs on a tiny corpus: what is measured, shown, predicted, resumed, refused, and fine-tuned."""

import json
import math
import shutil
from statistics import fmean

import numpy as np
import pytest
import runs
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForPreTraining, AutoTokenizer, PreTrainedTokenizerFast

from probattn.inference import SVGDDriver
from probattn.inference.records import read_records
from probattn.models.electra import Corrupted
from probattn.tasks import Pretraining, load_network, load_results, load_task, run_task, train
from probattn.tasks.errors import RunError
from probattn.tasks.pretraining import evaluation
from probattn.tasks.pretraining.vocabulary import SPECIAL, UNKNOWN, learned_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def recipe(recipe_of):
    return recipe_of("pretraining")


@pytest.fixture(scope="module")
def run(reported):
    return reported("pretraining")


def test_training_records_accuracies_beside_that_of_calling_all_original(run):
    own, plain = (read_records(run / name) for name in ("metrics.jsonl", "baseline/metrics.jsonl"))
    particles = [record["particles"] for record in own if record.get("particles")]
    assert particles
    assert all(len(found) == 3 and all(".layer.0." in name for name in found) for found in particles)
    assert not any(record.get("particles") for record in plain)
    for record in (record for record in own if record["kind"] == "validation"):
        assert 0 < record["original"] < 1 and 0 <= record["accuracy"] <= 1


def test_measures_are_those_of_every_token(run):
    """Against scikit-learn's, over the tokens of the test passages."""
    sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    results, task, trained = load_results(run), run_task(run), load_network(run)
    task.tokenizer = trained.codec
    scores, truth, loss, right, masked = [], [], 0.0, 0, 0
    rows = sorted(task.datasets["test"], key=lambda row: len(row["original_ids"]))
    for batch in task.replaced(trained, rows):
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
    score, true = torch.cat(scores).cpu().numpy(), torch.cat(truth).cpu().numpy()
    found = results.score("repulsive", "test").values
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, score > 0))
    assert found["balanced_accuracy"] == pytest.approx(sklearn.balanced_accuracy_score(true, score > 0))
    assert found["majority"] == pytest.approx(1 - true.mean())
    assert found["margin"] == pytest.approx(found["accuracy"] - found["majority"])
    probability = torch.cat(scores).double().sigmoid()
    expected = pytest.approx(sklearn.roc_auc_score(true, evaluation.score_bins(probability).numpy()))
    assert found["auroc"] == expected
    assert found["nll"] == pytest.approx(sklearn.log_loss(true, probability.numpy()), rel=1e-5)
    confidence = torch.maximum(probability, 1 - probability).numpy()
    agreed = true == (score > 0)
    place = np.minimum((confidence * task.recipe.report.bins).astype(int), task.recipe.report.bins - 1)
    gaps = [
        abs((agreed[place == each].astype(float) - confidence[place == each]).sum()) for each in set(place)
    ]
    assert found["ece"] == pytest.approx(sum(gaps) / len(true), abs=1e-6)
    assert found["generator_accuracy"] == pytest.approx(right / masked)
    assert found["generator_perplexity"] == pytest.approx(torch.tensor(loss / masked).exp().item(), rel=1e-4)


def test_tokens_that_are_mostly_replaced_and_scores_that_are_close():
    """Calling every token replaced reaches 80% here; scores with a deviation of 0.05 have their area."""
    sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(4000).view(1, -1) % 5 > 0
    logits = 1 + 0.05 * (torch.randn(1, 4000, generator=generator, dtype=torch.float64) + 0.8 * truth)
    columns = evaluation.detection_columns(logits[None], truth, torch.ones_like(truth), 10)
    found = evaluation.figures(columns | {"generator_tokens": torch.zeros(1)})
    assert (found["accuracy"], found["majority"], found["margin"]) == pytest.approx((0.8, 0.8, 0))
    assert found["auroc"] == pytest.approx(sklearn.roc_auc_score(truth[0], logits[0]), abs=2e-3)


def test_the_area_in_bins_is_the_area():
    sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    draw = torch.Generator().manual_seed(0)
    truth = torch.rand(40, 20, generator=draw) < 0.2
    logits = torch.randn(40, 20, generator=draw) * 2 + truth
    columns = evaluation.detection_columns(logits[None], truth, torch.ones_like(truth), 10)
    exact = sklearn.roc_auc_score(truth.flatten().numpy(), logits.flatten().numpy())
    assert evaluation.area(columns["scores"].sum(dim=0).double()) == pytest.approx(exact, abs=2e-3)
    assert evaluation.area(torch.zeros(2, 4)) is None
    twice = evaluation.detection_columns(logits.repeat(2, 1, 1), truth, torch.ones_like(truth), 10)
    torch.testing.assert_close(twice, columns)  # equal draws are one


def test_accuracies_in_training_are_those_of_the_logits():
    original = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]])
    replaced = torch.tensor([[False, True, False, False], [False, False, False, False]])
    generated = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
    targets = torch.tensor([[1], [1]])
    corrupted = Corrupted(original, replaced, replaced, generated, targets)
    counted = torch.tensor([[False, True, True, False], [False, True, False, False]])
    found = evaluation.validation_figures(replaced.float() - 0.5, corrupted, counted)
    expected = {"accuracy": [1, 1], "original": [0.5, 1], "generator_accuracy": [1, 0]}
    assert {name: values.tolist() for name, values in found.items()} == expected


def test_the_objective_is_in_nats_per_token_of_the_training_passages(recipe):
    task = load_task(recipe, ["pretraining.join=true"])
    program, rows = task.program(), list(task.stream)
    special = {task.tokenizer.convert_tokens_to_ids(name) for name in SPECIAL if name != UNKNOWN}
    assert set(program.special.tolist()) == special and program.mask_id in special
    counts = [sum(token not in special for token in row["original_ids"]) for row in rows]
    # The sample is not shuffled, so that joined texts are cut elsewhere.
    assert program.mean_length == pytest.approx(fmean(len(row["original_ids"]) for row in rows), rel=0.01)
    assert program.mean_masked == pytest.approx(fmean(math.ceil(0.15 * n - 1e-9) for n in counts), rel=0.03)
    inner = sum(len(row["original_ids"]) - 2 for row in rows)
    assert sum(counts) < inner  # a [SEP] within a passage is not masked


def test_the_replacements_can_be_those_of_another_generator(run):
    task, own, plain = run_task(run), load_network(run), load_network(run / "baseline")
    with torch.no_grad():
        own.program.generator.generator_lm_head.bias[7] += 50.0
    first, other, same = (
        next(task.replaced(network, task.datasets["test"], generator=source)).corrupted.input_ids
        for network, source in ((plain, own), (plain, None), (own, None))
    )
    assert torch.equal(first, same) and not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_tokens_read_as_their_tokenizer_has_them(kind):
    if kind == "wordpiece":
        codec = learned_tokenizer(lambda: ["film were good as"] * 3, 60)
    else:
        words = Tokenizer(models.BPE())
        words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<mask>"], show_progress=False)
        words.train_from_iterator(["film were good as"] * 3, trainer)
        codec = PreTrainedTokenizerFast(tokenizer_object=words, mask_token="<mask>")
    ids = codec("were films", add_special_tokens=False)["input_ids"]
    pieces = [evaluation.piece(codec, number) for number in ids]
    assert "".join(pieces) == " were films" and len(ids) > 2
    assert [each.startswith(" ") for each in pieces].count(True) == 2


def test_the_page_shows_tokens_and_heads(run):
    results = load_results(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Which tokens were replaced?" in page and "Do the heads differ?" in page
    assert len(results.samples) == 2 and 'class="predicted' in page
    for sample in results.samples:
        for model in ("deterministic", "repulsive"):
            found = [token.original is not None for token in sample if token.probabilities[model] > 0.5]
            replaced = sum(token.original is not None for token in sample)
            true, false = found.count(True), found.count(False)
            assert f"{true} of {replaced} replaced tokens detected, {false} false positives" in page
        assert all(set(token.probabilities) == {"deterministic", "repulsive"} for token in sample)
        share, words = sample[0].probabilities["repulsive"], sample[0].token.strip()
        shown = f'style="--p: {round(100 * share)}%" title="replaced: {share:.1%}"><bdi>{words}</bdi></span>'
        assert shown in page
    assert results.heads.models == ("start", "deterministic", "repulsive")
    expected = ["electra.encoder.layer.0.attention.self"]
    assert [site.site for site in results.heads.sites if site.model == "repulsive"] == expected


def test_the_discriminator_is_a_network_of_transformers_that_recipes_take(run, tmp_path):
    net = AutoModelForPreTraining.from_pretrained(run / "model")
    trained = load_network(run)
    text = "the film was good"
    codec = AutoTokenizer.from_pretrained(run / "model")
    inputs = codec(text, return_tensors="pt")
    with torch.no_grad():
        expected = net(**inputs).logits.sigmoid()[0, 1:-1]
        own = trained.program(trained.moved(inputs)).cpu()
        torch.testing.assert_close(own, net(**inputs).logits)
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


def test_latent_attention_trains_on_joined_texts_and_is_reported(recipe, run, tmp_path):
    keys = ("attention.method=babn", "pretraining.join=true", "repulsion=null", "training.epochs=1")
    keys += ("training.batch_size=64", "report.baseline=false", "report.head_examples=0")
    place, models = runs.trained(recipe, tmp_path / "run", *keys), ["bayesian_mean", "bayesian_expectation"]
    runs.succeeds("report", place, "--baseline", run / "baseline")
    results = load_results(place)
    assert results.measures == Pretraining.measures  # its AUROC is no detection of other data
    assert read_records(place / "metrics.jsonl")[-1]["step"] == math.ceil(len(run_task(place).stream) / 64)
    assert [score.model for score in results.scores] == ["deterministic", *models]
    mean, expected = (results.score(model, "test").values for model in models)
    assert mean["nll"] != expected["nll"] and len(results.health) == 2


class InterruptedRunError(Exception):
    pass


@pytest.mark.slow
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
    expected = [{k: v for k, v in line.items() if k not in timed} for line in other]
    assert [{k: v for k, v in line.items() if k not in timed} for line in one] == expected
    nets = [load_network(tmp_path / name) for name in ("whole", "cut")]
    for part in ("net", "generator"):
        states = [getattr(line.program, part).state_dict() for line in nets]
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
        ("training.length_pool=2", "expected null: passages come from a stream, whose order is its own"),
        ("network.heads=3", "width: expected a multiple of the heads (3), got 16"),
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
def test_texts_that_cannot_be_read_are_refused(run, text, tmp_path):
    words = "expected a text of 1 to 10 tokens, as many as the network was trained to read"
    assert words in runs.refused("predict", run, text or "\x07")
    (tmp_path / "texts.txt").write_text(f"the film\n{text or chr(7)}\n", encoding="utf-8")
    given = ("--input", tmp_path / "texts.txt", "--output", tmp_path / "found.jsonl")
    assert f"line 2: {words}" in runs.refused("predict", run, *given)
