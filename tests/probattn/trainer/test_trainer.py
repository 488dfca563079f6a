"""Which networks and arguments the trainer takes, and what of transformers works with it."""

import importlib
import math
import sys
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from accelerate.utils import DistributedType
from runs import forked_here, free_port
from transformers.integrations import integration_utils

import probattn
from probattn import ProbabilisticTrainer
from probattn.checks import PlainWarning
from probattn.files.manifest import verify_manifest
from probattn.inference import KLSchedule, ParticleEnsemble, posterior_predict
from probattn.inference.optimizers import added_parameters
from probattn.models import Classifier, TokenClassifier, Translator
from probattn.trainer import trainer as trainer_module
from probattn.trainer.refusals import size_for_particles, some_labels

BAYESIAN = probattn.BayesianAttention()
PROGRAMS = Path(__file__).parent / "programs"


def changed(scene, folder, **values):
    args = scene.arguments(folder)
    for name, value in values.items():
        setattr(args, name, value)
    return args


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"deepspeed": "ds.json"}, r"deepspeed='ds\.json' .*plain processes"),
        ({"fsdp": "full_shard"}, r"fsdp='full_shard' .*plain processes"),
        ({"_n_gpu": 2}, r"2 devices in one process .*DataParallel.*CUDA_VISIBLE_DEVICES"),
    ],
)
def test_arguments_that_change_the_objective_are_refused_by_name(scene, tmp_path, values, reason):
    with pytest.raises(ValueError, match=f"ProbabilisticTrainer: {reason}") as caught:
        ProbabilisticTrainer(model=scene.network(), args=changed(scene, tmp_path, **values))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("compiled_by", ["user", "trainer"])
def test_a_compiled_network_trains_as_the_network_does(scene, tmp_path, compiled_by):
    """The weight of the KL follows the schedule in both."""

    def trained(compiled):
        def program(net, **options):
            by_user = compiled and compiled_by == "user"
            return Classifier(torch.compile(net, backend="eager") if by_user else net, **options)

        asked = {"torch_compile": True, "torch_compile_backend": "eager"}
        more = asked if compiled and compiled_by == "trainer" else {}
        args = changed(scene, tmp_path, max_steps=3, logging_steps=1, **more)
        trainer = ProbabilisticTrainer(
            model=scene.network(scene.bert, BAYESIAN),
            args=args,
            train_dataset=scene.classes(16),
            program=program,
            kl_schedule=KLSchedule(final=0.1),
        )
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "kl_weight" in entry]
        evaluated = trainer.evaluate(scene.classes(8))
        last = (0.1, evaluated["eval_loss"], evaluated["eval_kl"])
        assert isinstance(trainer.model, hf.BertForSequenceClassification)
        assert trainer.model._compiled_call_impl is None
        return [*((entry["kl_weight"], entry["loss"], entry["kl"]) for entry in logs), last]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain = trained(compiled=False)
    assert not torch._dynamo.utils.counters["stats"]
    compiled = trained(compiled=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert len(plain) == 4 and plain[0][0] == 0 and plain[-1][0] == pytest.approx(0.1)
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (2.0, r"expected labels as whole numbers, .*got torch.float32 of shape \[\]; .*pandas"),
        ([0.0, 1.0], r"a number for each of 3, got torch.float32 of shape \[2\]"),
        (
            "billing",
            r"ProbabilisticTrainer: expected numbers as labels, got 'billing' in the first row; .*label2id",
        ),
    ],
)
def test_labels_of_another_kind_are_refused_with_their_cause(scene, tmp_path, labels, message):
    rows = [row | {"labels": labels} for row in scene.classes(4)]
    with pytest.raises((TypeError, ValueError), match=message):
        ProbabilisticTrainer(
            model=scene.network(lambda: scene.bert(num_labels=3)),
            args=scene.arguments(tmp_path),
            train_dataset=rows,
        )


def test_labels_are_smoothed_once_and_where_the_head_can(scene, tmp_path):
    args = changed(scene, tmp_path, label_smoothing_factor=0.1)
    trainer = ProbabilisticTrainer(model=scene.network(), args=args, program=partial(Classifier))
    assert trainer.program.label_smoothing == 0.1
    message = r"label_smoothing_factor=0\.1, but .* label_smoothing=0\.2; give one"
    with pytest.raises(ValueError, match=message):
        ProbabilisticTrainer(
            model=scene.network(), args=args, program=partial(Classifier, label_smoothing=0.2)
        )
    with pytest.raises(ValueError, match=r"not supported with SpanExtractor, whose likelihood has no label"):
        ProbabilisticTrainer(model=scene.network(lambda: scene.bert("QuestionAnswering")), args=args)
    args = changed(scene, tmp_path, label_smoothing_factor=1.0)
    with pytest.raises(ValueError, match=r"label_smoothing_factor: expected a number in \[0, 1\), got 1\.0"):
        ProbabilisticTrainer(model=scene.network(), args=args)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"compute_loss_func": lambda *_: 0}, ValueError, "compute_loss_func would replace"),
        ({"prediction": "median"}, ValueError, "prediction: expected .*'mean'.*'draws'.*'median'"),
        ({"num_samples": 0}, ValueError, "num_samples"),
        ({"num_data": 0}, ValueError, "num_data"),
        ({"kl_schedule": 0.01}, TypeError, r"kl_schedule: expected a KLSchedule, such as .*final"),
        ({"site_learning_rate": 0.0}, ValueError, "site_learning_rate"),
        ({"noise_learning_rate": 0.0}, ValueError, "noise_learning_rate"),
        ({"alignment_learning_rate": -1.0}, ValueError, "alignment_learning_rate"),
        ({"num_samples": 1, "prediction": "moments"}, ValueError, "num_samples: expected an integer >= 2"),
    ],
)
def test_options_out_of_their_range_are_refused(scene, tmp_path, options, error, message):
    with pytest.raises(error, match=f"ProbabilisticTrainer.*{message}"):
        ProbabilisticTrainer(model=scene.network(), args=scene.arguments(tmp_path), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"prediction": "draws", "num_samples": 1, "num_data": 1},
        {"prediction": "moments", "num_samples": 2},
        {"site_learning_rate": None, "noise_learning_rate": None, "alignment_learning_rate": None},
    ],
)
def test_options_at_the_ends_of_their_range_are_taken(scene, tmp_path, options):
    net = scene.network(scene.bert, BAYESIAN)
    trainer = ProbabilisticTrainer(model=net, args=scene.arguments(tmp_path, learning_rate=7e-4), **options)
    assert {name: getattr(trainer, name) for name in options if "rate" not in name}.items() <= options.items()
    if "site_learning_rate" in options:
        assert {group["lr"] for group in trainer.create_optimizer().param_groups} == {7e-4}


def test_what_is_no_network_with_a_head_is_refused_by_name(scene, tmp_path):
    args = scene.arguments(tmp_path)
    with pytest.raises(TypeError, match=r"got the program Classifier; .*program=Classifier"):
        ProbabilisticTrainer(Classifier(scene.network()), args)
    with pytest.raises(TypeError, match=r"ParticleEnsemble.*SVGDDriver"):
        ProbabilisticTrainer(model=ParticleEnsemble(Classifier(scene.network()), num_particles=2), args=args)
    with pytest.raises(TypeError, match="no program is known for this head"):
        ProbabilisticTrainer(model=torch.nn.Linear(2, 2), args=args)


def test_a_loss_of_a_class_mixed_in_is_not_left_out(scene, tmp_path):
    class Weighted(hf.Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            return super().compute_loss(model, inputs, **kwargs)

    class Mixed(ProbabilisticTrainer, Weighted):
        pass

    with pytest.raises(TypeError, match=r"Weighted\.compute_loss would be left out"):
        Mixed(model=scene.network(), args=scene.arguments(tmp_path))


def test_a_loss_of_ones_own_may_add_to_the_bound(scene, tmp_path):
    class Added(scene.Ordered):
        def compute_loss(self, model, inputs, **kwargs):
            return (
                super().compute_loss(model, inputs, **kwargs)
                + 100 * self.model.classifier.bias.square().sum()
            )

    class Outputs(scene.Ordered):
        def compute_loss(self, model, inputs, **kwargs):
            model(**inputs)

    class Kept(scene.Ordered):
        def compute_loss(self, model, inputs, **kwargs):
            return super().compute_loss(model, inputs, return_outputs=True, **kwargs)[0]

    data = scene.classes(4)
    options = {"args": scene.arguments(tmp_path, max_steps=2), "train_dataset": data}
    Added(model=scene.network(scene.bert, BAYESIAN), **options).train()
    with pytest.raises(TypeError, match=r"takes a whole batch, .*input_ids, .*by name; call self\.model"):
        Outputs(model=scene.network(scene.bert, BAYESIAN), **options).train()
    with pytest.raises(ValueError, match="return_outputs=True is for evaluation"):
        Kept(model=scene.network(scene.bert, BAYESIAN), **options).train()


def test_a_loss_that_names_no_number_of_labels_counts_them(scene, tmp_path):
    class Mine(scene.Ordered):
        def compute_loss(self, model, inputs, return_outputs=False, **_):
            return super().compute_loss(model, inputs, return_outputs)

    losses = []
    for kind in (scene.Ordered, Mine):
        args = scene.arguments(tmp_path, max_steps=2, per_device_train_batch_size=4)
        trainer = kind(model=scene.network(scene.bert, BAYESIAN), args=args, train_dataset=scene.classes(8))
        trainer.train()
        losses.append(scene.losses(trainer))
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_the_loss_of_the_network_itself_is_transformers_own(scene, tmp_path):
    """As ``Trainer`` asks for it in an evaluation, of outputs with names or in a row."""
    net = scene.network(scene.bert, BAYESIAN).eval()
    trainer = ProbabilisticTrainer(model=net, args=scene.arguments(tmp_path))
    batch = scene.collate(scene.classes(4))
    expected = net(**batch)
    for named in (True, False):
        inputs = batch | {"return_dict": named}
        loss, outputs = trainer.compute_loss(net, inputs, return_outputs=True)
        assert isinstance(outputs, dict) is named and torch.equal(outputs[1], expected.logits)
        assert loss == trainer.compute_loss(net, inputs) == expected.loss
    assert trainer._get_num_items_in_batch([], "cpu") is None
    assert trainer._get_num_items_in_batch([batch, batch], "cpu") == 8


def test_defaults_are_those_of_fine_tuning(scene, tmp_path):
    args = scene.arguments(tmp_path, learning_rate=5e-5)
    net = scene.network(lambda: scene.bert(num_labels=1), BAYESIAN, probattn.AlignmentAttention("gan"))
    rows = [{"input_ids": ids, "labels": float(ids[0]) / 9} for ids in scene.words(4)]
    trainer = ProbabilisticTrainer(model=net, args=args, train_dataset=rows)
    assert (trainer.prediction, trainer.num_samples, trainer.num_data) == ("mean", 20, None)
    assert trainer.kl_schedule == KLSchedule(final=1e-3)
    rates = {id(p): group["lr"] for group in trainer.create_optimizer().param_groups for p in group["params"]}
    added = added_parameters(net)
    expected = {"sites": {1e-3}, "noise": {1e-2}, "alignment": {1e-3}}
    assert {kind: {rates[one] for one in ids} for kind, ids in added.items()} == expected
    assert {rates[id(p)] for p in net.parameters() if id(p) not in set().union(*added.values())} == {5e-5}


@pytest.mark.parametrize("kind", [DistributedType.DEEPSPEED, DistributedType.FSDP])
def test_engines_that_an_environment_sets_are_refused(scene, tmp_path, monkeypatch, kind):
    """``accelerate launch`` may choose them without an argument."""

    def create(trainer):
        trainer.accelerator = SimpleNamespace(distributed_type=kind)

    monkeypatch.setattr(hf.Trainer, "create_accelerator_and_postprocess", create)
    message = f"expected one process or data-parallel ones, got {kind.value}; launch"
    with pytest.raises(ValueError, match=message):
        ProbabilisticTrainer(model=scene.network(), args=scene.arguments(tmp_path))


def test_labels_are_counted_over_processes_that_average_over_them(scene, tmp_path, monkeypatch):
    trainer = ProbabilisticTrainer(model=scene.network(), args=scene.arguments(tmp_path))
    batch = scene.collate(scene.classes(4))
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    trainer.accelerator.reduce = lambda count, how: {"sum": 3 * count}[how]
    for average, expected in ((True, 24), (False, 8)):
        trainer.args.average_tokens_across_devices = average
        assert trainer._get_num_items_in_batch([batch, batch], torch.device("cpu")) == expected


def test_a_program_without_a_head_is_refused(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "program_for", lambda *_, **__: torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="expected a program with a head, got Linear"):
        ProbabilisticTrainer(model=scene.network(), args=scene.arguments(tmp_path))


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_a_batch_without_a_label_counts_for_nothing(scene, tmp_path, weight):
    """Neither in training nor in an evaluation. Where there is no other batch, it is told."""
    rows = [{"input_ids": ids, "labels": torch.full_like(ids, -100)} for ids in scene.words(4)]
    labelled = [row | {"labels": row["input_ids"] % 3} for row in rows]
    args = scene.arguments(tmp_path, max_steps=1, per_device_train_batch_size=4, per_device_eval_batch_size=4)
    trainer = scene.Ordered(
        model=scene.network(lambda: scene.bert("TokenClassification", num_labels=3), BAYESIAN),
        args=args,
        train_dataset=rows,
        kl_schedule=KLSchedule("constant", final=weight),
    )
    with_labels, both = trainer.evaluate(labelled), trainer.evaluate(labelled + rows)
    for name in ("eval_log_likelihood", "eval_kl_nats", "eval_loss"):
        assert with_labels[name] == both[name], name
    with pytest.warns(
        PlainWarning, match="no row of the data has a label, so eval_loss is NaN; labels that are"
    ):
        unlabelled = trainer.evaluate(rows)
    assert not any(name.startswith("eval_kl") for name in unlabelled) and math.isnan(unlabelled["eval_loss"])
    with pytest.warns(
        PlainWarning, match="step 1: the log-likelihood is 0, so no row of the batch has a label"
    ):
        trainer.train()
    for name in ("loss", "log_likelihood", "kl", "kl_nats"):
        assert scene.losses(trainer, name) == [0], name


def test_labels_of_the_first_row_are_those_of_any_data_set_that_has_rows(scene):
    row = {"input_ids": [1], "label": 3}
    assert some_labels(None, [row]) == some_labels([row], None) == 3
    assert some_labels({"one": [row]}, [row | {"label": 4}]) == 4  # several data sets for evaluations
    assert some_labels([row | {"labels": [1, 2]}]).tolist() == [1, 2]
    assert some_labels([{"label_ids": 5, "x": 1}]) == 5
    for nothing in ((), (None,), ([],), ([{"x": 1}],), ([[1, 2]],), (Stream([row]),)):
        assert some_labels(*nothing) is None
    with pytest.raises(ValueError, match="need the size of the training data, which has no length"):
        size_for_particles(None)
    assert size_for_particles([row, row]) == 2


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_a_gradient_scaler_is_asked_once_for_each_step(scene, tmp_path, limit):
    """It refuses a second time; without a limit of the norm too."""
    args = scene.arguments(tmp_path, max_steps=3, max_grad_norm=limit, gradient_accumulation_steps=2)
    trainer = ProbabilisticTrainer(
        model=scene.network(scene.bert, BAYESIAN), args=args, train_dataset=scene.classes(32)
    )
    calls, unscale = [], trainer.accelerator.unscale_gradients
    trainer.accelerator.unscale_gradients = lambda *args: (
        calls.append(trainer.state.global_step),
        unscale(*args),
    )
    trainer.train()
    assert calls == [0, 1, 2]


def test_transformers_own_trainer_names_this_one(scene, tmp_path):
    for method in (BAYESIAN, probattn.AlignmentAttention("ct"), probattn.RepulsiveAttention()):
        trainer = hf.Trainer(
            model=scene.network(scene.bert, method),
            args=scene.arguments(tmp_path, max_steps=1),
            train_dataset=scene.classes(4),
        )
        with pytest.raises(RuntimeError, match=r"without a driver .*probattn\.ProbabilisticTrainer"):
            trainer.train()


def test_activation_checkpointing_changes_no_weight(scene, tmp_path):
    # By SGD: Adam makes steps of the rounding in gradients that are 0, those of the biases of keys.
    names = ("activation_checkpointing", "gradient_checkpointing")
    name = next(name for name in names if name in signature(hf.TrainingArguments).parameters)
    weights = []
    for on in (False, True):
        trainer = ProbabilisticTrainer(
            model=scene.network(scene.bert, BAYESIAN),
            args=scene.arguments(tmp_path / str(on), max_steps=3, optim="sgd", **{name: on}),
            train_dataset=scene.classes(8),
        )
        trainer.train()
        weights.append(trainer.model.state_dict())
    torch.testing.assert_close(weights[1], weights[0])


def test_training_data_without_labels_are_refused(scene, tmp_path):
    rows = [{"input_ids": ids} for ids in scene.words(4)]
    trainer = ProbabilisticTrainer(
        model=scene.network(), args=scene.arguments(tmp_path, max_steps=1), train_dataset=rows
    )
    with pytest.raises(ValueError, match="Classifier: expected labels in the batch, got input_ids"):
        trainer.train()


def test_frozen_sites_are_warned_of(scene, tmp_path):
    net = scene.network(scene.bert, BAYESIAN)
    for name, value in net.named_parameters():
        value.requires_grad_(".probattn." not in name)
    args = scene.arguments(tmp_path, max_steps=1)
    trainer = ProbabilisticTrainer(model=net, args=args, train_dataset=scene.classes(4))
    with pytest.warns(UserWarning, match="trainable"):
        trainer.train()


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_streams_train(scene, tmp_path):
    """The noise of repulsive heads needs the number of labels."""
    args = scene.arguments(tmp_path, max_steps=2)
    data = Stream(scene.classes(32))
    ProbabilisticTrainer(model=scene.network(scene.bert, BAYESIAN), args=args, train_dataset=data).train()
    repulsive = {"model": scene.network(scene.bert, probattn.RepulsiveAttention()), "args": args}
    with pytest.raises(ValueError, match="give num_data"):
        ProbabilisticTrainer(**repulsive, train_dataset=data).train()
    trainer = ProbabilisticTrainer(**repulsive, train_dataset=data, num_data=500)
    trainer.train()
    assert any(name.startswith("particles/bert.") for name in trainer.state.log_history[0])


def test_the_model_stays_the_network(scene, tmp_path):
    """For callbacks, unwrapping and saving; plain transformers loads what is saved."""
    seen = []

    class Look(hf.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen.append(model)

    net = scene.network(scene.bert, BAYESIAN)
    args = scene.arguments(tmp_path, max_steps=1)
    trainer = ProbabilisticTrainer(model=net, args=args, train_dataset=scene.classes(4), callbacks=[Look()])
    trainer.train()
    assert trainer.model is net and seen == [net] and trainer.accelerator.unwrap_model(trainer.model) is net
    trainer.save_model(str(tmp_path / "saved"))
    plain, report = hf.BertForSequenceClassification.from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not report["unexpected_keys"] and not report["missing_keys"]
    again = probattn.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path / "saved")
    batch = scene.collate(scene.classes(4))
    net.eval()
    assert torch.equal(again(**batch).logits, net(**batch).logits)
    draws = [posterior_predict(each, batch, 3, seed=1).logits for each in (again, net)]
    assert torch.equal(*draws)
    assert torch.equal(plain.classifier.weight, net.classifier.weight)


class Board:
    """Stands for TensorBoard's ``SummaryWriter``."""

    def __init__(self, log_dir=None):
        self.scalars, self.texts = {}, set()

    def add_scalar(self, name, value, step):
        self.scalars.setdefault(name, {})[step] = value

    def add_text(self, name, *args):
        self.texts.add(name)

    def flush(self):
        pass

    close = flush


def test_tensorboard_shows_the_terms(scene, tmp_path, monkeypatch):
    """As scalars, those of training, evaluations and tests apart, at the step of the optimiser."""
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Board))
    board = Board()
    trainer = ProbabilisticTrainer(
        model=scene.network(scene.bert, BAYESIAN),
        args=scene.arguments(tmp_path, max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=4),
        train_dataset=scene.classes(32),
        eval_dataset=scene.classes(8),
        callbacks=[integration_utils.TensorBoardCallback(board)],
    )
    trainer.train()
    assert board.texts == {"args", "model_config"}
    for name in ("loss", "log_likelihood", "kl", "kl_nats", "factors"):
        shown = board.scalars[f"train/{name}"], board.scalars[f"eval/{name}"]
        assert [list(values) for values in shown] == [[2, 4], [4]]
        logged = [scene.losses(trainer, key) for key in (name, f"eval_{name}")]
        assert [list(values.values()) for values in shown] == logged
    assert board.scalars["train/kl_weight"] == pytest.approx({2: 0.0005, 4: 0.001})


def test_a_sequence_to_sequence_trainer_generates(scene, tmp_path):
    class Mine(ProbabilisticTrainer, hf.Seq2SeqTrainer):
        """Both."""

    data = [{"input_ids": ids, "labels": ids[:4]} for ids in scene.words(6)]
    options = {"predict_with_generate": True, "generation_max_length": 5, "max_steps": 2}
    options["label_smoothing_factor"] = 0.1
    args = scene.arguments(tmp_path, **options)
    net = scene.network(scene.bart, BAYESIAN)
    trainer = Mine(model=net, args=args, train_dataset=data)
    trainer.train()
    assert isinstance(trainer.program, Translator) and trainer.program.label_smoothing == 0.1
    found = trainer.predict(data)
    expected = net.eval().generate(input_ids=scene.collate(data)["input_ids"], max_length=5)
    assert found.predictions[:, : expected.shape[1]].tolist() == expected.tolist()
    values = pytest.approx(found.metrics["test_kl"] - found.metrics["test_log_likelihood"], rel=1e-6)
    assert found.metrics["test_loss"] == values
    with pytest.raises(ValueError, match=r"prediction='draws' .*predict_with_generate"):
        Mine(model=net, args=args, train_dataset=data, prediction="draws")


def test_texts_of_like_length_are_grouped(scene, tmp_path):
    """With padding; the losses are means over the labels of a step."""
    rows = [
        {"input_ids": ids[: 2 + number % 5], "labels": ids[: 2 + number % 5] % 3}
        for number, ids in enumerate(scene.words(16))
    ]
    named = "group_by_length" in signature(hf.TrainingArguments).parameters
    grouped = {"group_by_length": True} if named else {"train_sampling_strategy": "group_by_length"}

    def pad(rows):
        most = max(len(row["input_ids"]) for row in rows)

        def padded(values, filler):
            return torch.stack(
                [torch.nn.functional.pad(value, (0, most - len(value)), value=filler) for value in values]
            )

        ids = padded([row["input_ids"] for row in rows], 0)
        labels = padded([row["labels"] for row in rows], -100)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    trainer = ProbabilisticTrainer(
        model=scene.network(lambda: scene.bert("TokenClassification", num_labels=3), BAYESIAN),
        args=scene.arguments(
            tmp_path, num_train_epochs=4, per_device_train_batch_size=4, learning_rate=1e-2, **grouped
        ),
        train_dataset=rows,
        data_collator=pad,
        kl_schedule=KLSchedule("constant", final=0.01),
    )
    assert isinstance(trainer.program, TokenClassifier)
    trainer.train()
    losses = scene.losses(trainer)
    assert sum(losses[-4:]) < sum(losses[:4])


@pytest.mark.fork
@pytest.mark.gloo
def test_two_processes_compute_what_one_does(scene, tmp_path, monkeypatch):
    """Losses, weights and evaluations, with texts of different numbers of labels and rows that do not divide."""
    monkeypatch.syspath_prepend(PROGRAMS)
    program, port = importlib.import_module("processes"), free_port()
    children = forked_here(program.one_of_two, (tmp_path, 0, port), (tmp_path, 1, port))
    alone = program.run(tmp_path, 1)
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0, 0]
    kinds = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1)]
    for kind, folder in (("parallel", "run-2"), ("sharded", "run-2-sharded")):
        ranks = [found[kind] for found in kinds]
        for name, value in ranks[0]["weights"].items():
            assert torch.equal(value, ranks[1]["weights"][name])
            assert torch.equal(value, ranks[1]["resumed"][name])
            torch.testing.assert_close(value, alone["weights"][name], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(ranks[0]["again"][name], alone["again"][name], rtol=1e-3, atol=1e-5)
        for name in ("seen", "loss", "kl_nats", "log_likelihood", "eval_loss", "eval_kl"):
            assert ranks[0][name] == pytest.approx(alone[name], rel=1e-5), name
        assert ranks[0]["noise"] != ranks[1]["noise"]
        for checkpoint in (tmp_path / folder).iterdir():
            assert {"rng_state_0.pth", "rng_state_1.pth"} < verify_manifest(checkpoint).files.keys()
    # The state of the optimizer is saved whole.
    stored = [
        torch.load(tmp_path / run / "checkpoint-4" / "optimizer.pt")["state"]
        for run in ("run-1", "run-2-sharded")
    ]
    assert stored[0].keys() == stored[1].keys()
    for index, state in stored[0].items():
        torch.testing.assert_close(state["exp_avg"], stored[1][index]["exp_avg"], rtol=1e-3, atol=1e-5)
