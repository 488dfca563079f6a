"""Weights of classes, soft labels and missing labels in a trainer, beside torch's loss."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, TrainerCallback

from probattn import BayesianAttention, ProbabilisticTrainer
from probattn.inference import KLSchedule
from probattn.models import Classifier
from probattn.trainer import compute_uncertainty

BAYESIAN = BayesianAttention()
WEIGHTS = [0.5, 2.0]


def labelled(scene, kind):
    """Eight texts with labels of the kind."""
    rows = scene.classes(8)
    for number, row in enumerate(rows):
        if kind == "missing" and number % 3 == 0:
            row["labels"] = -100
        elif kind == "soft":
            row["labels"] = [0.3, 0.7] if row["labels"] else [0.9, 0.1]
    return rows


class Gradients(TrainerCallback):
    """Keeps the gradients of the update."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.values = {name: value.grad.clone() for name, value in model.named_parameters()}


def expected_loss(net, rows, scene, weights):
    """torch's loss over all labels, by their number; and how many there are."""
    batch = scene.collate(rows)
    labels = batch.pop("labels")
    labels = labels.double() if labels.is_floating_point() else labels
    count = int((labels != -100).sum()) if labels.dim() == 1 else len(labels)
    weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    return cross_entropy(net(**batch).logits, labels, weight, reduction="sum") / count


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("kind", ["hard", "soft", "missing"])
@pytest.mark.parametrize("prediction", ["mean", "draws"])
def test_gradients_and_evaluations_are_those_of_torch_s_loss(scene, tmp_path, kind, weights, prediction):
    """An update of four micro-batches; an evaluation is without weights, whatever predicts."""
    method = (BAYESIAN,) if prediction == "draws" else ()
    rows, gradients = labelled(scene, kind), Gradients()
    options = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "learning_rate": 0.0,
    }

    class Mine(Classifier):
        """A subclass of the program."""

    trainer = scene.Noiseless(
        model=scene.network(scene.bert, *method, dtype=torch.float64),
        args=scene.arguments(tmp_path, max_steps=1, max_grad_norm=0, per_device_eval_batch_size=3, **options),
        train_dataset=rows,
        data_collator=scene.collate,
        program=partial(Mine, class_weights=weights),
        prediction=prediction,
        kl_schedule=KLSchedule("constant", final=0.0),
        callbacks=[gradients],
        compute_metrics=None if kind == "soft" else compute_uncertainty,
    )
    net = trainer.model
    trainer.train()
    if not method:
        loss = expected_loss(net.train(), rows, scene, weights)
        names, values = zip(*net.named_parameters(), strict=True)
        for name, value in zip(names, torch.autograd.grad(loss, values), strict=True):
            torch.testing.assert_close(gradients.values[name], value, rtol=1e-5, atol=1e-7)
        assert trainer.evaluate(rows)["eval_loss"] == pytest.approx(
            expected_loss(net, rows, scene, None).item(), rel=1e-6
        )
    output = trainer.predict(rows)
    assert output.predictions.shape == (8, 2) and np.isfinite(output.metrics["test_loss"])
    assert np.array_equal(output.label_ids, np.array([row["labels"] for row in rows], output.label_ids.dtype))
    assert net.config.problem_type != "multi_label_classification"
    if kind == "missing":
        present = [number for number, row in enumerate(rows) if row["labels"] != -100]
        alone = compute_uncertainty(EvalPrediction(output.predictions[present], output.label_ids[present]))
        assert {name: output.metrics[f"test_{name}"] for name in alone} == alone
    else:
        assert trainer.program.observations(scene.collate(rows)) == 8


def test_several_labels_may_be_missing_and_shares_count_from_a_half(scene, tmp_path):
    """Whole numbers with -100 predict; a policy takes a share above a half as the label."""

    def trainer_of(rows):
        torch.manual_seed(0)
        net = scene.bert(problem_type="multi_label_classification")
        args = scene.arguments(tmp_path)
        return ProbabilisticTrainer(model=net, args=args, eval_dataset=rows, data_collator=scene.collate)

    rows = [row | {"labels": [row["labels"], -100]} for row in scene.classes(8)]
    output = trainer_of(rows).predict(rows)
    assert output.label_ids.tolist() == [row["labels"] for row in rows]
    hard = [row | {"labels": [float(row["labels"]), 0.0]} for row in scene.classes(60)]
    shares = [row | {"labels": [0.2 + 0.6 * row["labels"][0], 0.4]} for row in hard]
    assert trainer_of(hard).triage(hard, error=0.8) == trainer_of(shares).triage(shares, error=0.8)


def test_soft_labels_without_their_program_are_refused(scene, tmp_path):
    rows = [row | {"labels": [0.3, 0.7]} for row in scene.classes(4)]
    with pytest.raises(
        ValueError, match=r"with sum 1: for soft labels .* program=probattn.models.Classifier"
    ):
        ProbabilisticTrainer(model=scene.bert(), args=scene.arguments(tmp_path), train_dataset=rows)
