"""Measures of predictions by programs: which label belongs to which logits, and memory."""

import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss
from torch.profiler import ProfilerActivity, profile
from transformers import EvalPrediction

import probattn
from probattn.models import program_for
from probattn.models.program import HeadProgram
from probattn.trainer import compute_uncertainty

WAYS = {
    "GPT2LMHeadModel": "causal",
    "BartForConditionalGeneration": "tokens",
    "TokenClassification": "tokens",
    "MaskedLM": "tokens",
    "SequenceClassification": "rows",
    "MultipleChoice": "rows",
    "QuestionAnswering": "spans",
}


def network(scene, head):
    if head.startswith("GPT2"):
        return scene.network(scene.gpt2)
    return scene.network(scene.bart if head.startswith("Bart") else lambda: scene.bert(head))


def by_hand(way, logits, labels):
    """Predictions and labels that belong together, as transformers' losses have them."""
    if way == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    if way == "spans":
        logits, labels = np.concatenate(logits), np.concatenate(labels)
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return logits[labels != -100], labels[labels != -100]


@pytest.mark.parametrize("head", WAYS)
def test_labels_are_compared_with_the_logits_that_predict_them(scene, head):
    """Against scikit-learn, on logits of any kind: the program alone says how they align."""
    rng, way = np.random.default_rng(0), WAYS[head]
    shape = {"rows": (8,), "spans": (8,)}.get(way, (8, 5))
    logits = rng.normal(size=(*shape, 6))
    labels = rng.integers(0, 6, shape)
    if way == "spans":
        logits, labels = (logits, rng.normal(size=(8, 6))), (labels, rng.integers(0, 6, 8))
    elif len(shape) == 2:
        labels[:, 4] = -100
    found = compute_uncertainty(EvalPrediction(logits, labels), program=program_for(network(scene, head)))
    scores, truth = by_hand(way, logits, labels)
    probabilities = torch.as_tensor(scores).softmax(-1).numpy()
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, scores.argmax(-1)))
    nats = log_loss(truth, probabilities, labels=range(6))
    assert found["negative_log_likelihood"] == pytest.approx(nats)


def test_every_program_with_a_shift_aligns_as_its_likelihood(scene):
    """The measure is the loss of the head, which transformers computes, and that of the card."""
    net = scene.network(scene.gpt2)
    ids = scene.words(5)
    output = net.eval()(input_ids=ids, labels=ids)
    measures = compute_uncertainty(
        EvalPrediction(output.logits.detach().numpy(), ids.numpy()), program=program_for(net)
    )
    assert measures["negative_log_likelihood"] == pytest.approx(output.loss.item(), rel=1e-5)


@pytest.mark.parametrize("prediction", ["mean", "draws", "moments"])
def test_a_trainer_hands_its_program_to_compute_metrics(scene, tmp_path, prediction):
    """Of a causal network too, also where compute_metrics is a function around it, and in the card."""
    rows = [{"input_ids": ids, "labels": ids} for ids in scene.words(6)]
    net = scene.network(scene.gpt2, probattn.BayesianAttention())

    def compute(prediction):
        return compute_uncertainty(prediction)

    trainer = probattn.ProbabilisticTrainer(
        model=net,
        args=scene.arguments(tmp_path),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=compute,
        prediction=prediction,
        num_samples=4,
    )
    metrics = trainer.evaluate()
    found = trainer.predict(rows)
    logits = torch.as_tensor(found.predictions)
    labels = torch.stack([row["labels"] for row in rows])
    nats = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()
    assert metrics["eval_negative_log_likelihood"] == pytest.approx(nats, rel=1e-4)
    assert trainer.compute_metrics is compute
    trainer.save_model(tmp_path / "net")
    assert f"| {metrics['eval_negative_log_likelihood']:.4g}" in (tmp_path / "net" / "README.md").read_text()


@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        ("SequenceClassification", {"num_labels": 1}, r"of classes, got those of numbers \(Regressor\)"),
        (
            "SequenceClassification",
            {"problem_type": "multi_label_classification"},
            "of classes, got those of labels that are 0 or 1",
        ),
    ],
)
def test_predictions_of_other_kinds_are_refused_by_name(scene, head, options, message):
    program = program_for(scene.bert(head, **options))
    with pytest.raises(ValueError, match=f"compute_uncertainty: expected predictions {message}"):
        compute_uncertainty(EvalPrediction(np.zeros((4, 2)), np.zeros((4, 2))), program=program)
    with pytest.raises(ValueError, match=r"compute_uncertainty: expected logits .* with as many labels"):
        compute_uncertainty(EvalPrediction(np.zeros((4, 1)), np.zeros((4, 1))))


def test_pieces_of_the_scores_give_what_they_give_together(monkeypatch):
    rng = np.random.default_rng(1)
    prediction = EvalPrediction(rng.normal(size=(37, 5)), rng.integers(0, 5, 37))
    together = compute_uncertainty(prediction)
    monkeypatch.setattr("probattn.trainer.evaluation.SCORES", 20)
    assert compute_uncertainty(prediction) == pytest.approx(together, abs=1e-7)


def test_memory_beside_the_logits_is_less_than_one_copy_of_them(scene, tmp_path):
    """The peak of all that torch allocates; numpy's arrays are taken without a copy."""
    rng, program = np.random.default_rng(0), program_for(scene.network(scene.gpt2))
    logits = rng.random((64, 32, 5000), dtype=np.float32)
    prediction = EvalPrediction(logits, rng.integers(0, 5000, (64, 32)))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        compute_uncertainty(prediction, program=program)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((each["ts"], each["args"]["Bytes"]) for each in events if each["name"] == "[memory]")
    peak = max(itertools.accumulate(size for _, size in changes))
    assert 0 < peak < logits.nbytes


def test_a_program_that_aligns_by_itself_is_followed():
    class Reversed(HeadProgram):
        def read(self, output, inputs):
            return output

        def observe(self, prediction, labels, inputs):
            pass

        def aligned(self, prediction, labels):
            return prediction.flip(1), labels

    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, (3, 5))
    logits = 9.0 * np.eye(4)[labels[:, ::-1]]
    measure = partial(compute_uncertainty, program=Reversed(torch.nn.Linear(1, 1)))
    assert measure(EvalPrediction(logits, labels))["accuracy"] == 1


def test_labels_that_are_no_numbers_are_refused(scene, tmp_path):
    rows = [{"input_ids": ids, "labels": "fine"} for ids in scene.words(4)]
    with pytest.raises(ValueError, match="expected numbers as labels, got 'fine' in the first row"):
        probattn.ProbabilisticTrainer(
            model=scene.network(scene.bert), args=scene.arguments(tmp_path), train_dataset=rows
        )


def test_two_classes_are_enough_and_a_message_names_what_came():
    logits, labels = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1, 0])
    assert compute_uncertainty(EvalPrediction(logits, labels))["accuracy"] == 1
    for given, words in (((labels, labels), "several kinds of labels"), (labels[:1], r"labels \[1\]")):
        with pytest.raises(ValueError, match=rf"got logits \[2, 2\] and {words}"):
            compute_uncertainty(EvalPrediction(logits, given))
    with pytest.raises(ValueError, match=r"got logits \[2, 1\] and labels \[2\]"):
        compute_uncertainty(EvalPrediction(logits[:, :1], labels))
