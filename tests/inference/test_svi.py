"""The driver: what it computes against plain torch, what it records, what it refuses."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate.tracking import GeneralTracker
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from probattn.inference.batches import DataOrder
from probattn.inference.checkpoint import CheckpointStore
from probattn.inference.guide import AttentionGuide
from probattn.inference.loop import NonFiniteError
from probattn.inference.optimizers import OptimizerOptions, SchedulerOptions
from probattn.inference.options import EarlyStopping, KLSchedule
from probattn.inference.records import Record, read_records
from probattn.inference.svi import SVIDriver
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.noise import GlobalNoise
from probattn.sites.site import AttentionSite


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def train_records(tiny: ModuleType, folder: Path) -> list[Record]:
    records = tiny.without_times(read_records(folder / "metrics.jsonl"))
    return [record for record in records if record["kind"] == "train"]


@pytest.mark.parametrize(("size", "accumulation"), [(4, 1), (2, 2), (1, 4)])
@pytest.mark.parametrize("limit", [None, 0.3])
def test_updates_are_those_of_plain_torch(
    tiny: ModuleType, size: int, accumulation: int, limit: float | None
) -> None:
    """Without noise: the same rows, the same loss, gradient descent with clipping written out."""
    data, steps = tiny.tiny_data(10), 7
    oracle = tiny.tiny_model(attend=False)
    order = DataOrder(10, 4, seed=5)
    for step in range(steps):
        rows = torch.tensor(order.shares(step, 0)[0].rows)
        mean = oracle.out(oracle.query(data["x"][rows]).tanh()).squeeze(-1).mean(-1)
        loss = 0.5 * (mean - data["y"][rows]).square().mean()
        gradients = torch.autograd.grad(loss, list(oracle.parameters()))
        norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
        rate = 0.1 * (1 - 0.5 * step / steps) * (1.0 if limit is None else min(1.0, limit / norm))
        with torch.no_grad():
            for parameter, gradient in zip(oracle.parameters(), gradients, strict=True):
                parameter.sub_(rate * gradient)
    model = tiny.tiny_model(attend=False)
    driver = tiny.tiny_driver(
        model,
        optimizer=OptimizerOptions("SGD", learning_rate=0.1, weight_decay=0.0),
        batch_size=size,
        accumulation=accumulation,
        max_grad_norm=limit,
        seed=5,
    )
    result = driver.fit(data, steps=steps)
    assert (result.step, result.total_steps, result.stopped_early) == (steps, steps, False)
    for expected, found in zip(oracle.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_training_lowers_the_loss_and_moves_every_parameter(tiny: ModuleType) -> None:
    model = tiny.tiny_model()
    before = weights_of(model)
    records: list[Record] = []
    tiny.tiny_driver(
        model,
        log_every=10,
        kl_schedule=KLSchedule("constant"),
        callbacks=[lambda record, _: records.append(record)],
    ).fit(tiny.tiny_data(40), epochs=20)
    assert len(records) == 20
    assert records[-1]["loss"] < records[0]["loss"] - 0.05
    unmoved = [name for name, value in model.state_dict().items() if torch.equal(value, before[name])]
    assert unmoved == []
    assert not model.training


def test_one_forward_pass_per_micro_batch(tiny: ModuleType) -> None:
    model = tiny.tiny_model()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    tiny.tiny_driver(model, batch_size=2, accumulation=3).fit(tiny.tiny_data(12), epochs=2)
    assert len(calls) == 12


def test_the_same_seed_gives_the_same_run_and_another_another(tiny: ModuleType) -> None:
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(100 + len(found))  # the caller's generators do not matter
        model = tiny.tiny_model(dropout=0.2)
        tiny.tiny_driver(model, seed=seed).fit(tiny.tiny_data(), steps=5)
        found.append(weights_of(model))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_the_callers_generators_are_left_alone(tiny: ModuleType) -> None:
    before = torch.get_rng_state()
    tiny.tiny_driver(tiny.tiny_model(dropout=0.2)).fit(tiny.tiny_data(), tiny.tiny_data(), steps=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluations_do_not_change_the_training(tiny: ModuleType, tmp_path: Path) -> None:
    data = tiny.tiny_data()
    tiny.tiny_driver(folder=tmp_path / "a", eval_every=1).fit(data, tiny.tiny_data(5, seed=9), steps=8)
    tiny.tiny_driver(folder=tmp_path / "b").fit(data, steps=8)
    assert train_records(tiny, tmp_path / "a") == train_records(tiny, tmp_path / "b")


def test_records_hold_the_parts_of_the_objective(tiny: ModuleType, tmp_path: Path) -> None:
    schedule = KLSchedule("linear", final=0.8, warmup_steps=4)
    driver = tiny.tiny_driver(folder=tmp_path, kl_schedule=schedule, eval_every=3)
    driver.fit(tiny.tiny_data(12), tiny.tiny_data(5, seed=9), steps=6)
    records = read_records(tmp_path / "metrics.jsonl")
    assert [(record["kind"], record["step"]) for record in records] == [
        *[("train", step) for step in (1, 2, 3)],
        ("validation", 3),
        *[("train", step) for step in (4, 5, 6)],
        ("validation", 6),
    ]
    for record in records:
        assert record["kl_reduction"] == "mean"
        assert record["loss"] == pytest.approx(record["kl"] - record["log_likelihood"], abs=1e-6)
        pairs = 2 * 3 * 3  # heads, queries, keys: "mean" divides by them
        assert record["kl"] == pytest.approx(record["kl_weight"] * record["kl_nats"] / pairs, rel=1e-5)
    training = [record for record in records if record["kind"] == "train"]
    assert [record["kl_weight"] for record in training] == [schedule.weight(step, 6) for step in range(6)]
    assert [record["epoch"] for record in training] == pytest.approx(
        [step / 3 for step in range(1, 7)], abs=1e-6
    )
    assert [record["kl_weight"] for record in records if record["kind"] == "validation"] == [0.8, 0.8]
    for step, record in enumerate(training):
        assert record["learning_rates"]["pretrained"] == pytest.approx(0.01 * (1 - 0.5 * step / 6))
        assert record["learning_rates"]["sites"] == pytest.approx(0.02 * (1 - 0.5 * step / 6))
        assert record["gradient_norm"] > 0
        assert record["seconds"] >= 0
        site = record["sites"]["attention"]
        assert site["kl_nats"] == pytest.approx(record["kl_nats"], rel=1e-5)
        assert site["concentration"] > 1
        assert 0 < site["cv"] < 1.5


def test_a_record_is_the_mean_of_the_updates_since_the_last(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.tiny_driver(folder=tmp_path / "each").fit(tiny.tiny_data(), steps=7)
    tiny.tiny_driver(folder=tmp_path / "third", log_every=3).fit(tiny.tiny_data(), steps=7)
    losses = [record["loss"] for record in train_records(tiny, tmp_path / "each")]
    means = [record["loss"] for record in train_records(tiny, tmp_path / "third")]
    assert means == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]])


def test_further_validation_metrics_see_the_model_and_the_batch(tiny: ModuleType) -> None:
    model = tiny.tiny_model(attend=False)

    def error(seen: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        assert seen is model
        return {"squared_error": (seen(batch) - batch["y"]).square() * 0 + batch["y"]}

    data = tiny.tiny_data(7, seed=3)
    result = tiny.tiny_driver(model, validation_metrics=error).fit(tiny.tiny_data(), data, steps=2)
    assert result.validation is not None
    assert result.validation["squared_error"] == pytest.approx(data["y"].mean().item(), rel=1e-5)


def test_a_trivial_weight_starts_the_warm_up(tiny: ModuleType) -> None:
    """At weight 0 the KL neither counts nor pulls: the first update is that of the likelihood alone."""
    for kind in ("linear", "sigmoid"):
        result = tiny.tiny_driver(kl_schedule=KLSchedule(kind, warmup_steps=5)).fit(tiny.tiny_data(), steps=1)
        assert result.train is not None
        assert result.train["kl"] == 0
        assert result.train["loss"] == -result.train["log_likelihood"]
        assert result.train["kl_nats"] > 0


@pytest.mark.parametrize("folder", [None, "run"])
def test_early_stopping_ends_the_run_and_restores_the_best(
    tiny: ModuleType, tmp_path: Path, folder: str | None
) -> None:
    values = iter([0.0, 3.0, 1.0, 2.0, 1.5, 4.0, 0.0])  # the first before training, for the metric's name
    model = tiny.tiny_model()
    seen: dict[int, dict[str, torch.Tensor]] = {}
    driver = tiny.tiny_driver(
        model,
        folder=None if folder is None else tmp_path / folder,
        keep_last=1,
        eval_every=2,
        early_stopping=EarlyStopping("score", patience=3),
        validation_metrics=lambda *_: {"score": torch.tensor(next(values))},
        callbacks=[lambda record, net: seen.update({record["step"]: weights_of(net)})],
    )
    result = driver.fit(tiny.tiny_data(), tiny.tiny_data(4), steps=100)
    assert (result.step, result.stopped_early, result.best, result.best_step) == (10, True, 1.0, 4)
    assert same(weights_of(model), seen[4])
    assert not same(seen[4], seen[10])
    if folder is not None:
        assert CheckpointStore(tmp_path / folder / "checkpoints").steps() == [4, 10]


def test_early_stopping_that_never_fires_restores_the_best_too(tiny: ModuleType) -> None:
    values = iter([9.0, 1.0, 5.0, 2.0])  # the first before training, for the metric's name
    model = tiny.tiny_model()
    seen: dict[int, dict[str, torch.Tensor]] = {}
    result = tiny.tiny_driver(
        model,
        eval_every=1,
        early_stopping=EarlyStopping("score", mode="max", patience=9),
        validation_metrics=lambda *_: {"score": torch.tensor(next(values))},
        callbacks=[lambda record, net: seen.update({record["step"]: weights_of(net)})],
    ).fit(tiny.tiny_data(), tiny.tiny_data(4), steps=3)
    assert (result.step, result.stopped_early, result.best_step) == (3, False, 2)
    assert same(weights_of(model), seen[2])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (EarlyStopping("acuracy"), r"metric: .* 'acuracy'; there are loss, .*, accuracy$"),
        (EarlyStopping(also={"accurate": "max"}), "also: .* 'accurate'; there are loss, .*, accuracy$"),
    ],
)
def test_an_unknown_stopping_metric_is_refused_before_anything_is_done(
    tiny: ModuleType, tmp_path: Path, rule: EarlyStopping, words: str
) -> None:
    model, folder, batches = tiny.tiny_model(), tmp_path / "run", []
    before = weights_of(model)

    def accuracy(_: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        batches.append(batch)
        return {"accuracy": torch.tensor(1.0)}

    driver = tiny.tiny_driver(model, folder=folder, early_stopping=rule, validation_metrics=accuracy)
    with pytest.raises(ValueError, match=words):
        driver.fit(tiny.tiny_data(), tiny.tiny_data(9), steps=1)
    assert same(weights_of(model), before) and not folder.exists() and len(batches) == 1


def test_looking_for_a_stopping_metric_leaves_no_trace(tiny: ModuleType) -> None:
    def train(rule: EarlyStopping | None) -> dict[str, torch.Tensor]:
        driver = tiny.tiny_driver(
            early_stopping=rule,
            validation_metrics=lambda model, _: {"noise": torch.rand(1) + model.training},
        )
        driver.fit(tiny.tiny_data(), tiny.tiny_data(4), steps=3)
        return weights_of(driver.model)

    assert same(train(EarlyStopping("noise", patience=9)), train(EarlyStopping(patience=9)))


class DtypeProbe(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[torch.dtype] = []
        inner.query.register_forward_hook(lambda _, __, output: self.seen.append(output.dtype))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.inner(batch)


def test_bfloat16_runs_and_does_not_leak_into_the_next_driver(tiny: ModuleType, tmp_path: Path) -> None:
    runs = {}
    for name, precision in (("a", "no"), ("b", "bf16"), ("c", "no")):
        probe = DtypeProbe(tiny.tiny_model())
        tiny.tiny_driver(probe, precision=precision, folder=tmp_path / name).fit(tiny.tiny_data(), steps=6)
        assert set(probe.seen) == {torch.bfloat16 if precision == "bf16" else torch.float32}
        assert all(parameter.dtype == torch.float32 for parameter in probe.parameters())
        runs[name] = train_records(tiny, tmp_path / name)
        assert all(math.isfinite(record["loss"]) for record in runs[name])
    assert runs["a"] == runs["c"] != runs["b"]
    exact = [record["log_likelihood"] for record in runs["a"]]
    assert [record["log_likelihood"] for record in runs["b"]] == pytest.approx(exact, rel=0.1)


def test_float16_needs_a_gpu(tiny: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"'fp16' needs a GPU; use 'bf16'"):
        tiny.tiny_driver(precision="fp16").fit(tiny.tiny_data(), steps=1)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_gpu_is_used_where_there_is_one(tiny: ModuleType, tmp_path: Path, precision: str) -> None:
    model = tiny.tiny_model(dropout=0.2)
    options: dict[str, Any] = {
        "cpu": False,
        "precision": precision,
        "folder": tmp_path,
        "checkpoint_every": 2,
    }
    tiny.tiny_driver(model, **options).fit(tiny.tiny_data(), tiny.tiny_data(4), steps=6)
    assert next(model.parameters()).is_cuda
    assert all(math.isfinite(record["loss"]) for record in train_records(tiny, tmp_path))


def poisoned(tiny: ModuleType, column: str) -> tuple[dict[str, torch.Tensor], int]:
    """Data with a NaN in a row of the fifth step, and that row."""
    data = tiny.tiny_data(32)
    row = DataOrder(32, 4).shares(4, 0)[0].rows[1]
    data[column][row] = math.nan
    return data, row


def test_a_loss_that_is_not_finite_stops_the_run_and_loses_nothing(tiny: ModuleType, tmp_path: Path) -> None:
    data, row = poisoned(tiny, "x")
    model = tiny.tiny_model()
    with pytest.raises(NonFiniteError) as caught:
        tiny.tiny_driver(model, folder=tmp_path, checkpoint_every=3).fit(data, steps=8)
    message = str(caught.value)
    for words in ("step 5 (epoch 1, its step 5)", "loss nan", "attention (kl_nats nan", "step-000004"):
        assert words in message
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [3, 4]
    assert [record["step"] for record in train_records(tiny, tmp_path)] == [1, 2, 3, 4]
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())

    data["x"][row] = 0.0  # repaired, it goes on as if nothing had been
    tiny.tiny_driver(folder=tmp_path, checkpoint_every=3).fit(data, steps=8, resume=True)
    tiny.tiny_driver(folder=tmp_path / "whole").fit(data, steps=8)
    assert train_records(tiny, tmp_path) == train_records(tiny, tmp_path / "whole")


def test_a_likelihood_that_is_not_finite_is_not_blamed_on_a_site(tiny: ModuleType) -> None:
    data, _ = poisoned(tiny, "y")
    with pytest.raises(NonFiniteError) as caught:
        tiny.tiny_driver().fit(data, steps=8)
    for words in (
        "the loss of step 5 ",
        "no attention site is to blame",
        "Pyro's validation: Error while computing log_prob at site 'y'",
        "there is no checkpoint",
    ):
        assert words in str(caught.value)


def test_a_gradient_that_is_not_finite_stops_the_run_too(tiny: ModuleType) -> None:
    class Root(tiny.Regression):
        def forward(self, batch: Any) -> Any:
            """A term of value 0 whose slope at 0 is infinite."""
            return super().forward(batch | {"x": batch["x"] + (0 * self.out.bias).abs().sqrt()})

    model = Root()
    before = weights_of(model)
    with pytest.raises(
        NonFiniteError, match=r"gradient norm nan.*gradients that are not finite: model\.out\.bias"
    ):
        tiny.tiny_driver(model).fit(tiny.tiny_data(), steps=2)
    assert same(before, weights_of(model))


def test_trackers_get_numbers_by_step(tiny: ModuleType) -> None:
    class Tracker(GeneralTracker):
        name = "list"
        requires_logging_directory = False

        def __init__(self) -> None:
            super().__init__()
            self.config: dict[str, Any] = {}
            self.logged: list[tuple[int | None, dict[str, float]]] = []

        @property
        def tracker(self) -> list[Any]:
            return self.logged

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            self.config = values

        def log(self, values: dict[str, float], step: int | None, **_: Any) -> None:
            self.logged.append((step, values))

    tracker = Tracker()
    result = tiny.tiny_driver(trackers=[tracker]).fit(tiny.tiny_data(), tiny.tiny_data(4), steps=2)
    assert tracker.config["kl_schedule.kind"] == "linear"
    assert tracker.config["data.batch_size"] == 4
    assert [step for step, _ in tracker.logged] == [1, 2, 2]
    assert result.train is not None
    assert tracker.logged[1][1]["train/loss"] == result.train["loss"]
    assert "train/sites.attention.cv" in tracker.logged[1][1]
    assert "validation/loss" in tracker.logged[2][1]


def test_a_plateau_scheduler_follows_the_validation_loss(tiny: ModuleType) -> None:
    records: list[Record] = []
    tiny.tiny_driver(
        tiny.tiny_model(attend=False),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-12),
        scheduler=lambda optimizer, _: ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e-3),
        eval_every=1,
        callbacks=[lambda record, _: records.append(record)],
    ).fit(tiny.tiny_data(), tiny.tiny_data(4), steps=4)
    rates = [record["learning_rates"]["pretrained"] for record in records if record["kind"] == "train"]
    assert rates == pytest.approx([2e-5, 2e-5, 1e-5, 5e-6])  # the loss hardly changes


def test_no_scheduler_keeps_the_rates(tiny: ModuleType) -> None:
    result = tiny.tiny_driver(scheduler=None).fit(tiny.tiny_data(), steps=3)
    assert result.train is not None
    assert set(result.train["learning_rates"].values()) == {0.01, 0.02}


def test_the_guide_given_is_the_one_used(tiny: ModuleType) -> None:
    class Counting(GlobalNoise):
        calls = 0

        def uniform(self, like: torch.Tensor) -> torch.Tensor:
            Counting.calls += 1
            return super().uniform(like)

    model = tiny.tiny_model()
    guide = AttentionGuide(model, noise=Counting())
    tiny.tiny_driver(model, guide=guide, kl_schedule=KLSchedule("constant", final=0.25)).fit(
        tiny.tiny_data(), steps=3
    )
    assert Counting.calls == 3
    assert guide.kl_weight == 0.25


def test_a_folder_that_holds_a_run_is_not_overwritten(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.tiny_driver(folder=tmp_path).fit(tiny.tiny_data(), steps=2)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match=r"holds a run already \(checkpoint of step 2\).*resume=True"):
        tiny.tiny_driver(folder=tmp_path).fit(tiny.tiny_data(), steps=2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, r"SVIDriver.batch_size: expected an integer >= 1, got 0"),
        ({"accumulation": 1.5}, r"accumulation.*1.5"),
        ({"log_every": True}, r"log_every.*True"),
        ({"keep_last": 0}, "keep_last"),
        ({"eval_every": 0}, "eval_every"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"seed": -1}, r"seed.*>= 0"),
        ({"num_workers": -1}, "num_workers"),
        ({"precision": "fp8"}, r"precision: expected one of 'no', 'bf16', 'fp16', got 'fp8'"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm.*> 0 or None"),
    ],
)
def test_options_out_of_range_are_refused(tiny: ModuleType, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny.tiny_driver(**options)


def test_a_function_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got function.*PyroModule"):
        SVIDriver(lambda batch: batch)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"one of steps and epochs, got steps=None, epochs=None"),
        ({"steps": 1, "epochs": 1}, r"one of steps and epochs"),
        ({"steps": 0}, r"fit\(steps\).*>= 1, got 0"),
        ({"epochs": 0}, r"fit\(epochs\).*>= 1, got 0"),
        ({"steps": 1, "resume": True}, "needs the folder"),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    tiny: ModuleType, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        tiny.tiny_driver().fit(tiny.tiny_data(), **arguments)


def test_early_stopping_needs_validation_data(tiny: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"early stopping on 'loss' needs validation_data"):
        tiny.tiny_driver(early_stopping=EarlyStopping()).fit(tiny.tiny_data(), steps=1)


def test_the_default_scheduler_warms_up_linearly(tiny: ModuleType) -> None:
    records: list[Record] = []
    tiny.tiny_driver(
        scheduler=SchedulerOptions(warmup_fraction=0.5), callbacks=[lambda record, _: records.append(record)]
    ).fit(tiny.tiny_data(), steps=4)
    rates = [record["learning_rates"]["pretrained"] for record in records]
    assert rates == pytest.approx([0.0, 0.005, 0.01, 0.005])


def test_reductions_are_labelled_in_the_records(tiny: ModuleType) -> None:
    model = tiny.tiny_model()
    model.site = AttentionSite(BayesianAttention(kl_reduction="sum"), model.site.spec)
    result = tiny.tiny_driver(model).fit(tiny.tiny_data(), steps=2)
    assert result.train is not None
    assert result.train["kl_reduction"] == "sum"
    assert result.train["kl"] == pytest.approx(result.train["kl_weight"] * result.train["kl_nats"], rel=1e-5)


def test_frozen_parameters_stay_and_nothing_warns(tiny: ModuleType) -> None:
    """Warnings are errors here, and Pyro has one for every parameter without a gradient."""
    model = tiny.tiny_model()
    model.out.requires_grad_(False)
    before = weights_of(model)
    tiny.tiny_driver(model).fit(tiny.tiny_data(10), steps=3)
    after = weights_of(model)
    assert torch.equal(before["out.weight"], after["out.weight"])
    assert not torch.equal(before["query.weight"], after["query.weight"])
