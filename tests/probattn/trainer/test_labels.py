"""Weights of classes, soft labels and missing labels in a trainer, beside torch's loss."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
import transformers as hf
from pyro import poutine
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification, EvalPrediction, TrainerCallback

from probattn import BayesianAttention, ProbabilisticTrainer
from probattn.checks import PlainWarning
from probattn.inference import KLSchedule
from probattn.models import Classifier, MultiLabelClassifier, Regressor
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


def test_one_unanimous_row_does_not_make_soft_labels_several_labels(scene, tmp_path):
    rows = [row | {"labels": [0.3, 0.7]} for row in scene.classes(9)]
    rows[0]["labels"] = [0.0, 1.0]
    with pytest.raises(ValueError, match=r"got \[0\.3.*, 0\.6.*\], with sum 1: for soft labels"):
        ProbabilisticTrainer(model=scene.bert(), args=scene.arguments(tmp_path), train_dataset=rows)
    for number, row in enumerate(rows):
        row["labels"] = [0.0, 1.0] if number % 2 else [1.0, 1.0]
    trainer = ProbabilisticTrainer(model=scene.bert(), args=scene.arguments(tmp_path), train_dataset=rows[1:])
    assert isinstance(trainer.program, MultiLabelClassifier)


@pytest.mark.parametrize("head", ["classes", "tokens"])
def test_rows_without_a_label_do_not_count(scene, tmp_path, head):
    """Neither their divergence in an evaluation nor that in a training step; with noise that all rows share."""
    kind = "SequenceClassification" if head == "classes" else "TokenClassification"
    rows = scene.classes(8) if head == "classes" else scene.tokens(8)
    for number, row in enumerate(rows):
        if number % 4:
            row["labels"] = -100 if head == "classes" else torch.full_like(row["labels"], -100)
    results = []
    for data in (rows, rows[::4]):
        net = scene.network(lambda: scene.bert(kind, num_labels=3), BAYESIAN)
        args = scene.arguments(tmp_path, max_steps=1, per_device_train_batch_size=8)
        recorder = Gradients()
        trainer = scene.Noiseless(
            model=net,
            args=args,
            train_dataset=data,
            eval_dataset=data,
            kl_schedule=KLSchedule(kind="constant", final=1.0),
            data_collator=scene.collate,
            callbacks=[recorder],
        )
        terms = trainer.evaluate()
        trainer.train()
        results.append((terms, trainer.state.log_history[0], recorder.values))
    (first, step, gradients), (second, expected, others) = results
    for name in ("eval_loss", "eval_kl", "eval_log_likelihood"):
        assert first[name] == pytest.approx(second[name], rel=1e-4)
    for name in ("loss", "kl", "log_likelihood"):
        assert step[name] == pytest.approx(expected[name], rel=1e-4)
    for name, value in gradients.items():
        torch.testing.assert_close(value, others[name], atol=1e-5, rtol=1e-3)


def test_a_batch_without_any_label_does_not_move_the_network(scene, tmp_path):
    rows = [row | {"labels": -100} for row in scene.classes(4)]
    net = scene.network(scene.bert, BAYESIAN)
    recorder = Gradients()
    trainer = ProbabilisticTrainer(
        model=net,
        args=scene.arguments(tmp_path, max_steps=1, per_device_train_batch_size=4),
        train_dataset=rows,
        kl_schedule=KLSchedule(kind="constant", final=1.0),
        data_collator=scene.collate,
        callbacks=[recorder],
    )
    with pytest.warns(PlainWarning, match="no row of the batch has a label"):
        trainer.train()
    assert trainer.state.log_history[0]["loss"] == 0.0
    assert all(not value.any() for value in recorder.values.values())


def test_numbers_are_observed_in_single_precision_under_autocast():
    labels = torch.tensor([2013.0, 2014.25, 2018.5])
    program = Regressor(torch.nn.Linear(1, 1))
    batch = {"x": torch.ones(3, 1), "labels": labels}

    def likelihood():
        prediction = torch.full((3, 1), 2016.0)
        with torch.autocast("cpu", torch.bfloat16):
            cast = prediction.bfloat16()
        trace = poutine.trace(lambda: program.observe(cast, batch, {})).get_trace()
        return trace.nodes["label"]["value"]

    torch.testing.assert_close(likelihood().flatten(), labels)


class Weighted(BertForSequenceClassification):
    """A network with a loss of its own."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **options):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        if labels is not None:
            output.loss = cross_entropy(output.logits, labels, weight=torch.tensor(WEIGHTS))
        return output


def test_a_loss_of_the_network_s_class_is_left_out_with_a_warning(scene, tmp_path):
    rows, net = scene.classes(4), Weighted(scene.bert().config)
    with pytest.warns(PlainWarning, match=r"the loss of Weighted\.forward is left out.*class_weights"):
        ProbabilisticTrainer(model=net, args=scene.arguments(tmp_path), train_dataset=rows)
    options = {"args": scene.arguments(tmp_path), "train_dataset": rows}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainWarning)
        ProbabilisticTrainer(model=net, program=partial(Classifier, class_weights=WEIGHTS), **options)
        ProbabilisticTrainer(model=scene.bert(), **options)


def test_the_loss_of_routers_is_left_out_with_one_warning(scene, tmp_path):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_key_value_heads": 1, "num_local_experts": 2, "num_experts_per_tok": 1, "vocab_size": 24}
    config = hf.MixtralConfig(**sizes, **experts, pad_token_id=0, output_router_logits=True)
    rows = [{"input_ids": ids, "labels": ids} for ids in scene.words(4)]
    options = {"args": scene.arguments(tmp_path, max_steps=1), "train_dataset": rows}
    with pytest.warns(PlainWarning) as caught:
        ProbabilisticTrainer(model=hf.MixtralForCausalLM(config), **options).train()
    (message,) = (str(warning.message) for warning in caught)
    assert "MixtralForCausalLM has config.output_router_logits=True" in message and "freeze" in message
    config.output_router_logits = False
    ProbabilisticTrainer(model=hf.MixtralForCausalLM(config), **options)
    # Its own loss has no such term.
    config.output_router_logits = True
    ProbabilisticTrainer(
        model=hf.MixtralForSequenceClassification(config),
        args=options["args"],
        train_dataset=scene.classes(4),
    )
