"""The trainer's losses against the drivers', against transformers' own, and under accumulation."""

import copy
from functools import partial

import pytest
import torch
import transformers as hf
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback, TrainingArguments

import probattn
from probattn import inference
from probattn.inference.session import derived_seed
from probattn.models import Classifier, TokenClassifier
from probattn.sites.noise import SeededNoise
from probattn.trainer.updates import Updates

BAYESIAN = probattn.BayesianAttention()
METHODS = {
    "latent": (BAYESIAN,),
    "aligned": (BAYESIAN, probattn.AlignmentAttention("ct")),
    "adversarial": (probattn.AlignmentAttention("gan"),),
    "penalised": (probattn.DisagreementAttention(),),
    "repulsive": (probattn.RepulsiveAttention(),),
}


class SameNoise(inference.AttentionGuide):
    """Draws as the trainer does, with a seed for each step."""

    steps = 0

    def __call__(self, *args, **kwargs):
        self.noise = SeededNoise([derived_seed(5, 0, 0, self.steps, 0)], "cpu")
        self.steps += 1
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "dtype", "bf16", "steps"),
    [
        ("latent", torch.float32, False, 20),
        ("latent", torch.float64, False, 10),
        ("latent", torch.float32, True, 10),
        *((name, torch.float32, False, 10) for name in METHODS if name != "latent"),
    ],
)
def test_losses_are_the_drivers(scene, tmp_path, name, dtype, bf16, steps):
    """Updates on the same rows with the same noise, optimiser, clipping and schedules."""
    batch = 4
    rows = scene.classes(steps * batch)
    net = scene.network(scene.bert, *METHODS[name], dtype=dtype)
    twin = copy.deepcopy(net)
    records = []
    # Under bf16 the last bit of a number that is scaled to the data and back grows from step to step.
    model = Classifier(twin, num_data=None if bf16 else len(rows))
    driver = (inference.SVGDDriver if name == "repulsive" else inference.SVIDriver)(
        model,
        guide=SameNoise(model),
        batch_size=batch,
        shuffle=False,
        optimizer=inference.OptimizerOptions(
            learning_rate=1e-3, site_learning_rate=3e-3, alignment_learning_rate=2e-3
        ),
        scheduler=inference.SchedulerOptions("linear", warmup_steps=3),
        collate=scene.collate,
        max_grad_norm=0.5,
        precision="bf16" if bf16 else "no",
        log_every=1,
        callbacks=[lambda record, _: records.append(record)],
        progress=False,
        cpu=True,
    )
    driver.fit(rows, steps=steps)
    args = scene.arguments(
        tmp_path,
        per_device_train_batch_size=batch,
        max_steps=steps,
        warmup_steps=3,
        weight_decay=0.01,
        max_grad_norm=0.5,
        seed=5,
        bf16=bf16,
    )
    trainer = scene.Ordered(
        model=net,
        args=args,
        train_dataset=rows,
        kl_schedule=inference.KLSchedule(),
        site_learning_rate=3e-3,
        alignment_learning_rate=2e-3,
    )
    trainer.train()
    assert len(records) == steps
    for ours, theirs in (("loss", "loss"), ("kl_nats", "kl_nats"), ("grad_norm", "gradient_norm")):
        expected = torch.tensor([record[theirs] for record in records])
        found = torch.tensor(scene.losses(trainer, ours))
        tight = 1e-6 if dtype == torch.float64 else 1e-5  # rounding differs between processors
        torch.testing.assert_close(found, expected, rtol=tight, atol=1e-6)
    assert scene.losses(trainer, "kl_weight")[0] == 0
    assert scene.losses(trainer, "kl_weight")[-1] == 1


class Gradients(TrainerCallback):
    """Keeps the gradients of every update."""

    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found.append(
            {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        )


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification"])
def test_four_micro_batches_of_eight_are_one_of_32(scene, tmp_path, head):
    """Also where the last has fewer rows, and where texts have different numbers of labels."""
    data = (scene.tokens if head.startswith("Token") else scene.classes)(30)
    seen = []
    for batch, accumulation in ((8, 4), (32, 1)):
        net = scene.network(
            lambda: scene.bert(head, num_labels=3),
            BAYESIAN,
            probattn.AlignmentAttention("ct"),
            dtype=torch.float64,
        )
        gradients = Gradients()
        args = scene.arguments(
            tmp_path,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=2,
            max_grad_norm=0,
        )
        trainer = scene.Noiseless(
            model=net,
            args=args,
            train_dataset=data,
            callbacks=[gradients],
            kl_schedule=inference.KLSchedule("constant", final=0.3),
        )
        trainer.train()
        seen.append((scene.losses(trainer), scene.losses(trainer, "kl_nats"), gradients.found))
    (losses, nats, gradients), (others, other_nats, other_gradients) = seen
    assert losses == pytest.approx(others, rel=1e-6)  # logged in float32
    assert nats == pytest.approx(other_nats, rel=1e-12)
    for mine, other in zip(gradients, other_gradients, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            torch.testing.assert_close(value, other[name], rtol=1e-9, atol=1e-12)


def padded(rows):
    labels = [torch.as_tensor(row["labels"]) for row in rows]
    ids = [row["input_ids"] for row in rows]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(text) for text in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100)
        if labels[0].ndim
        else torch.stack(labels),
    }


@pytest.mark.parametrize("head", ["ConditionalGeneration", "SequenceClassification"])
@pytest.mark.parametrize("method", [BAYESIAN, probattn.AlignmentAttention("ct")])
def test_padding_of_a_decoder_does_not_count(scene, tmp_path, head, method):
    """Of targets that are shifted labels, and of a text that a classifier's decoder reads again."""
    rows = []
    for length, ids in enumerate(scene.words(5), start=2):
        text = torch.cat([ids[: length - 1], torch.tensor([2])])
        rows.append({"input_ids": text, "labels": text.flip(0) if head.startswith("Cond") else length % 2})
    config = hf.BartConfig(**scene.BART, **scene.SPECIAL, num_labels=2)
    net = scene.network(lambda: getattr(hf, f"BartFor{head}")(config), method, dtype=torch.float64)
    found = []
    for batch in (1, 5):
        trainer = scene.Noiseless(
            model=net,
            args=scene.arguments(tmp_path, per_device_eval_batch_size=batch),
            data_collator=padded,
            eval_dataset=rows,
            kl_schedule=inference.KLSchedule("constant", final=0.3),
        )
        found.append(trainer.evaluate())
    for name in ("eval_loss", "eval_log_likelihood", "eval_kl_nats", "eval_factors"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-6), name


def test_the_mean_length_of_a_program_does_not_divide_the_loss_again(scene, tmp_path):
    found = []
    for program in (None, partial(TokenClassifier, mean_length=4.0)):
        net = scene.network(lambda: scene.bert("TokenClassification", num_labels=3), BAYESIAN)
        trainer = scene.Noiseless(
            model=net,
            args=scene.arguments(tmp_path, max_steps=2),
            train_dataset=scene.tokens(16),
            eval_dataset=scene.tokens(4),
            program=program,
        )
        trainer.train()
        found.append([*scene.losses(trainer), trainer.evaluate()["eval_loss"]])
    assert found[0] == found[1]


def span(scene, count):
    return [
        {"input_ids": ids, "start_positions": int(ids[0]) % 3, "end_positions": 3 + int(ids[1]) % 3}
        for ids in scene.words(count)
    ]


HEADS = {
    # network, rows
    "classes": (lambda s: s.bert(num_labels=2), lambda s, n: s.classes(n)),
    "labels": (
        lambda s: s.bert(num_labels=3),  # told from one class by its labels
        lambda s, n: [{"input_ids": ids, "labels": [float(ids[0] > 9), 1.0, 0.0]} for ids in s.words(n)],
    ),
    "numbers": (
        lambda s: s.bert(num_labels=1),
        lambda s, n: [{"input_ids": ids, "labels": float(ids[0]) / 9} for ids in s.words(n)],
    ),
    "tokens": (lambda s: s.bert("TokenClassification", num_labels=3), lambda s, n: s.tokens(n)),
    "span": (lambda s: s.bert("QuestionAnswering"), span),
    "choices": (
        lambda s: s.bert("MultipleChoice"),
        lambda s, n: [{"input_ids": ids, "labels": int(ids[0, 0]) % 3} for ids in s.words(n, 3, s.LENGTH)],
    ),
    "masked": (
        lambda s: s.bert("MaskedLM"),
        lambda s, n: [
            {"input_ids": ids, "labels": ids.masked_fill(torch.arange(len(ids)) % 2 == 0, -100)}
            for ids in s.words(n)
        ],
    ),
    "causal": (
        lambda s: s.gpt2(),
        lambda s, n: [
            # transformers divides by all labels of GPT-2, also by the first, which nothing predicts
            {"input_ids": ids, "labels": ids.masked_fill(torch.arange(len(ids)) == 0, -100)}
            for ids in s.words(n)
        ],
    ),
    "translation": (
        lambda s: s.bart(),
        lambda s, n: [{"input_ids": ids, "labels": ids[:4]} for ids in s.words(n)],
    ),
}


@pytest.mark.parametrize(
    ("head", "smoothing"),
    [
        *((name, 0.0) for name in HEADS if name != "numbers"),
        *((name, 0.1) for name in ("classes", "choices")),
    ],
)
def test_a_network_that_was_not_converted_trains_as_in_transformers(scene, tmp_path, head, smoothing):
    """Losses, gradient norms and evaluations of transformers' own trainer.

    Without accumulation, under which transformers adds up the losses of heads that do not divide by the labels.
    """
    make, rows = HEADS[head]
    found = {}
    for kind in (scene.Plain, scene.Ordered):
        args = scene.arguments(
            tmp_path,
            per_device_train_batch_size=3,
            per_device_eval_batch_size=2,
            num_train_epochs=2,
            label_smoothing_factor=smoothing,
        )
        data = rows(scene, 8)
        trainer = kind(model=scene.network(lambda: make(scene)), args=args, train_dataset=data)
        trainer.train()
        found[kind] = (
            scene.losses(trainer),
            scene.losses(trainer, "grad_norm"),
            (predicted := trainer.predict(data[:4])).metrics["test_loss"],
        )
    (losses, norms, test), (others, other_norms, other_test) = found.values()
    assert others == pytest.approx(losses, rel=1e-6)
    assert other_norms == pytest.approx(norms, rel=1e-5)
    if smoothing:  # ours is not smoothed in evaluation
        logits, labels = map(torch.as_tensor, (predicted.predictions, predicted.label_ids))
        assert other_test == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    elif head != "tokens":  # a mean over batches there
        assert other_test == pytest.approx(test, rel=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_trains_and_predicts(scene, tmp_path, head):
    """The loss falls; predictions have the shapes of the network that was not converted, as means and as draws."""
    make, rows = HEADS[head]
    data = rows(scene, 6)
    plain = scene.Plain(
        model=scene.network(lambda: make(scene)), args=scene.arguments(tmp_path, per_device_eval_batch_size=4)
    )
    plain = plain.predict(data)
    shapes = {}
    for prediction in ("mean", "draws"):
        args = scene.arguments(
            tmp_path,
            per_device_train_batch_size=6,
            per_device_eval_batch_size=4,
            max_steps=5,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
        )
        trainer = scene.Ordered(
            model=scene.network(lambda: make(scene), BAYESIAN),
            args=args,
            train_dataset=data,
            kl_schedule=inference.KLSchedule("constant", final=0.01),
            prediction=prediction,
            num_samples=3,
        )
        shapes[prediction] = before = trainer.predict(data)
        if prediction == "mean":
            trainer.train()
            assert trainer.predict(data).metrics["test_loss"] < before.metrics["test_loss"]

    def all_shapes(output):
        parts = output.predictions if isinstance(output.predictions, tuple) else (output.predictions,)
        labels = output.label_ids if isinstance(output.label_ids, tuple) else (output.label_ids,)
        return [part.shape for part in parts], [part.shape for part in labels]

    assert all_shapes(shapes["mean"]) == all_shapes(plain)
    scores, labels = all_shapes(shapes["draws"])
    expected, expected_labels = all_shapes(plain)
    assert labels == expected_labels
    assert scores == expected[: len(scores)] and len(scores) == (2 if head == "span" else 1)


@pytest.mark.parametrize(("every", "steps"), [(2, [1, 3]), (0.5, [1, 3]), (3, [2])])
def test_gradients_are_measured_in_the_steps_that_are_logged(monkeypatch, scene, tmp_path, every, steps):
    measured, before_step = [], Updates.before_step

    def note(self, step, *, measure, folder):
        measured.extend([step] if measure else [])
        before_step(self, step, measure=measure, folder=folder)

    monkeypatch.setattr(Updates, "before_step", note)
    args = scene.arguments(tmp_path, logging_steps=every, max_steps=4)
    net = scene.network(scene.bert, probattn.BayesianAttention())
    probattn.ProbabilisticTrainer(model=net, args=args, train_dataset=HEADS["classes"][1](scene, 8)).train()
    assert measured == steps


def test_a_network_alone_is_enough(monkeypatch, scene, tmp_path):
    monkeypatch.chdir(tmp_path)
    trainer = probattn.ProbabilisticTrainer(scene.network(scene.bert, probattn.BayesianAttention()))
    assert isinstance(trainer.args, TrainingArguments)
