"""Evaluation and prediction: means, draws, exact means over labels, measures of uncertainty."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss
from torch import nn
from transformers import EvalPrediction

import probattn
from probattn.inference import AttentionELBO, AttentionGuide, KLSchedule, posterior_moments, posterior_predict
from probattn.inference.predictive import Posterior
from probattn.models import TokenClassifier, program_for, revert
from probattn.models.hosts.description import evaluations_in, notes
from probattn.trainer import compute_uncertainty
from probattn.trainer import evaluation as module
from probattn.trainer.evaluation import add_to_card, prediction_words, real_rows

BAYESIAN = probattn.BayesianAttention()


def trainer_of(scene, folder, net, data, **options):
    own = {
        name: options.pop(name)
        for name in ("prediction", "num_samples", "kl_schedule", "compute_metrics")
        if name in options
    }
    args = scene.arguments(folder, **options)
    return probattn.ProbabilisticTrainer(model=net, args=args, train_dataset=data, eval_dataset=data, **own)


def test_the_loss_is_the_mean_over_all_labels_under_the_final_weight(scene, tmp_path):
    """With batches of different size whose texts have different numbers of labels; one batch gives the same."""
    data = scene.tokens(7)
    net = scene.network(lambda: scene.bert("TokenClassification", num_labels=3), BAYESIAN)
    program = program_for(net)
    rows = [(program, scene.collate(data[first : first + 3])) for first in (0, 3, 6)]
    schedule = KLSchedule("linear", final=0.25, warmup_steps=100)
    found = trainer_of(
        scene, tmp_path, net, data, per_device_eval_batch_size=3, kl_schedule=schedule
    ).evaluate()
    # The KL in closed form does not depend on the draws of the first layer alone: the draws are the evaluation's.
    assert found["eval_loss"] == pytest.approx(found["eval_kl"] - found["eval_log_likelihood"], rel=1e-6)
    labels = sum(model.observations(batch) for model, batch in rows)
    assert labels == sum(int((row["labels"] != -100).sum()) for row in data)
    guide = AttentionGuide(program, kl_weight=0.25)
    draws = torch.stack(
        [
            sum(
                len(batch["labels"]) * AttentionELBO()(program, guide)(batch).loss.detach()
                for _, batch in rows
            )
            for _ in range(20)
        ]
    )
    draws = draws / labels
    assert abs(found["eval_loss"] - draws.mean()) < 5 * draws.std()


def test_evaluations_can_be_compared_and_move_no_generator(scene, tmp_path):
    data = scene.classes(10)
    trainer = trainer_of(scene, tmp_path, scene.network(scene.bert, BAYESIAN), data)
    torch.manual_seed(3)
    first = trainer.evaluate()
    drawn = torch.rand(())
    torch.manual_seed(4)
    second = trainer.evaluate()
    torch.manual_seed(3)
    assert torch.rand(()) == drawn
    for name in ("loss", "kl", "kl_nats", "log_likelihood"):
        assert first[f"eval_{name}"] == second[f"eval_{name}"]


def test_means_are_the_outputs_of_the_network(scene, tmp_path):
    data = scene.classes(6)
    net = scene.network(scene.bert, BAYESIAN)
    batch = {name: value for name, value in scene.collate(data).items() if name != "labels"}
    with torch.no_grad():
        expected = net.eval()(**batch).logits
    for rows in (data, [{k: v for k, v in row.items() if k != "labels"} for row in data]):
        found = trainer_of(scene, tmp_path, net, data, per_device_eval_batch_size=6).predict(rows)
        np.testing.assert_array_equal(found.predictions, expected.numpy())
    assert found.label_ids is None and "test_loss" not in found.metrics


def test_draws_are_the_mean_probabilities_of_a_posterior(scene, tmp_path):
    data = scene.classes(5)
    net = scene.network(scene.bert, BAYESIAN)
    found = trainer_of(scene, tmp_path, net, data, prediction="draws", num_samples=100).predict(data)
    probabilities = np.exp(found.predictions)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    many = posterior_predict(program_for(net), scene.collate(data), 100, seed=7)
    error = many.probabilities.std(dim=0) / math.sqrt(50)  # of a difference of two means of 100 draws
    assert bool((abs(torch.as_tensor(probabilities) - many.mean_probabilities) < 4 * error).all())
    again = trainer_of(scene, tmp_path, net, data, prediction="draws", num_samples=100).predict(data)
    np.testing.assert_array_equal(again.predictions, found.predictions)


@pytest.mark.slow_but("classes")
@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("SequenceClassification", {}),
        ("SequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
        ("SequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
        ("TokenClassification", {"num_labels": 3}),
    ],
    ids=["classes", "labels", "numbers", "tokens"],
)
def test_moments_have_the_form_of_draws_and_agree_with_them(scene, tmp_path, head, options):
    net = scene.network(lambda: scene.bert(head, **options), BAYESIAN)
    program = program_for(net)
    data = scene.classes(2)
    if head == "TokenClassification":
        data = [row | {"labels": torch.zeros_like(row["input_ids"])} for row in data]
    elif options:
        data = [row | {"labels": torch.zeros(options["num_labels"])} for row in data]
    found = trainer_of(scene, tmp_path, net, data, prediction="moments", num_samples=100).predict(data)
    scores, inputs = torch.as_tensor(found.predictions), program.inputs(scene.collate(data))
    drawn = module.mean_of_draws(program, inputs, 100, 3)
    assert scores.shape == drawn.shape and scores.dtype == drawn.dtype
    # The first order knows no bias, which is smaller than the spread.
    spread = posterior_predict(program, inputs, 100, seed=7).logits.std(dim=0)
    assert (scores - drawn).square().mean() < spread.square().mean()
    moments = posterior_moments(program, inputs, num_samples=100)
    assert moments.source == "expansion"
    means = {"softmax": scores.exp(), "sigmoid": scores.sigmoid(), "identity": scores}[program.link]
    torch.testing.assert_close(means, moments.mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("link", ["softmax", "sigmoid", "identity"])
def test_chunks_of_draws_add_up_to_the_mean(monkeypatch, scene, link):
    """Against the mean over all draws at once."""
    scores, numbers = 3 * torch.randn(7, 2, 3, dtype=torch.float64), []

    def draw(program, inputs, number, *, seed, chunk_size):
        numbers.append(number)
        return Posterior(scores[seed[-1] : seed[-1] + number])

    monkeypatch.setattr(module, "posterior_predict", draw)
    monkeypatch.setattr(module, "rows_per_pass", lambda _: 4)
    program = program_for(scene.network(scene.bert, BAYESIAN))
    program.link = link
    found = module.mean_of_draws(program, {"x": torch.zeros(2)}, 7, 0).double()
    expected = {
        "softmax": F.softmax(scores, dim=-1).mean(0).log(),
        "sigmoid": torch.logit(torch.sigmoid(scores).mean(0)),
        "identity": scores.mean(0),
    }[link]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert numbers == [2, 2, 2, 1]  # four rows a pass, of two rows a draw


@pytest.mark.parametrize("prediction", ["draws", "moments"])
def test_a_network_without_sites_has_no_draws(scene, tmp_path, prediction):
    data, words = (
        scene.classes(4),
        rf"prediction='{prediction}' of a Bert\w+ without attention sites, in which nothing is random",
    )
    with pytest.raises(ValueError, match=words):
        trainer_of(scene, tmp_path, scene.network(scene.bert), data, prediction=prediction)
    trainer = trainer_of(scene, tmp_path, scene.network(scene.bert, BAYESIAN), data, prediction=prediction)
    revert(trainer.model)
    with pytest.raises(ValueError, match=words):
        trainer.predict(data)


def test_measures_of_uncertainty(scene, tmp_path):
    """Against scikit-learn; padded tokens do not count."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    found = compute_uncertainty(EvalPrediction(logits, labels))
    probabilities = torch.as_tensor(logits).softmax(-1).numpy()
    assert found["accuracy"] == accuracy_score(labels, logits.argmax(-1))
    assert found["negative_log_likelihood"] == pytest.approx(log_loss(labels, probabilities))
    assert found["brier_score"] == pytest.approx(((probabilities - np.eye(3)[labels]) ** 2).sum(-1).mean())
    padded = np.full((10, 5, 3), -100.0), np.full((10, 5), -100)
    padded[0][:, :4], padded[1][:, :4] = logits.reshape(10, 4, 3), labels.reshape(10, 4)
    tokens = TokenClassifier(nn.Linear(1, 1))
    with_padding = compute_uncertainty(EvalPrediction((padded[0], None), padded[1]), program=tokens)
    assert with_padding == pytest.approx(found)
    with pytest.raises(ValueError, match=r"compute_uncertainty: expected the program .* logits before them"):
        compute_uncertainty(EvalPrediction(*padded))
    for scores, given in (
        (logits, labels[:3]),
        (logits[:, 0], labels),
        (logits, (labels, labels)),
        (logits[:0], labels[:0]),
        (logits, None),
    ):
        with pytest.raises(ValueError, match="compute_uncertainty: expected"):
            compute_uncertainty(EvalPrediction(scores, given))
    data = scene.classes(8)
    metrics = trainer_of(
        scene,
        tmp_path,
        scene.network(scene.bert, BAYESIAN),
        data,
        prediction="draws",
        compute_metrics=compute_uncertainty,
    ).evaluate()
    assert {"eval_pavpu", "eval_calibration_error", "eval_accuracy"} <= metrics.keys()


@pytest.mark.filterwarnings("ignore:posterior_moments")
def test_draws_that_replace_moments_follow_the_seed(scene):
    """Wide weights are left to draws, whose mean is that of posterior_moments with the same seed."""
    net = scene.network(
        lambda: scene.bert("SequenceClassification"), probattn.BayesianAttention.bam(0.3)
    ).eval()
    program = program_for(net)
    inputs = program.inputs(scene.collate(scene.classes(3)))
    for seed in (1, 2):
        expected = posterior_moments(program, inputs, num_samples=5, seed=(seed, 4))
        assert expected.source == "draws"
        scores = module.mean_of_moments(program, inputs, 5, seed, 4)
        torch.testing.assert_close(scores.exp(), expected.mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("prediction", ["mean", "draws", "moments"])
def test_nothing_is_predicted_where_the_loss_alone_is_needed(scene, tmp_path, prediction):
    net, data = scene.network(lambda: scene.bert("SequenceClassification"), BAYESIAN), scene.classes(3)
    trainer = trainer_of(scene, tmp_path, net, data, prediction=prediction)
    loss, scores, labels = trainer.prediction_step(trainer.model, scene.collate(data), True)
    assert math.isfinite(loss) and scores is None and labels is None


@pytest.mark.parametrize(
    ("processes", "ends", "remainder", "expected"),
    [
        *((2, True, 3, [2, 1]), (2, True, 1, [1, 0]), (2, True, 4, [2, 2]), (3, True, 5, [2, 2, 1])),
        *((2, True, 0, [2, 2]), (2, False, 3, [2, 2]), (1, True, 1, [2]), (2, True, -1, [2, 2])),
    ],
)
def test_rows_that_processes_repeat_are_left_out(processes, ends, remainder, expected):
    """Of two rows of each process; the remainder is the number of real ones of the last step."""
    batch = {"input_ids": torch.arange(8).view(2, 4), "labels": torch.arange(2), "words": ["a", "b"]}
    for index, rows in enumerate(expected):
        state = SimpleNamespace(end_of_dataloader=ends, remainder=remainder)
        accelerator = SimpleNamespace(num_processes=processes, process_index=index, gradient_state=state)
        real = real_rows(batch, accelerator)
        assert {name: len(real[name]) for name in batch} == {"input_ids": rows, "labels": rows, "words": 2}
        assert torch.equal(real["labels"], torch.arange(rows))


def test_words_and_figures_of_a_card(scene):
    words = [prediction_words(kind, 7) for kind in ("mean", "draws", "moments")]
    assert words == ["posterior expectation", "mean of 7 draws", "closed-form mean of the posterior"]
    net = scene.network(scene.bert, probattn.BayesianAttention())
    metrics = {"eval_loss": 0.5, "eval_jit_compilation_time": 1.0, "eval_model_preparation_time": 2.0}
    metrics |= {"eval_kl": math.inf, "eval_name": "words", "other": 3}
    add_to_card(net, "eval", metrics, None, None, "draws")
    add_to_card(net, "test", {"test_loss": 1}, 5, None, "draws")
    assert evaluations_in(notes(net)) == {
        "eval": {"figures": {"loss": 0.5, "kl": "inf", "other": 3}, "on": "rows, draws"},
        "test": {"figures": {"loss": 1}, "on": "5 rows, draws"},
    }
