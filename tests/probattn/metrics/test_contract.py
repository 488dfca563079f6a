"""What every metric class must do: the same value however the data are cut, ordered, stored or spread."""

import importlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from runs import forked_here
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from probattn import metrics
from probattn.metrics import base

HERE = Path(__file__).parent
mpl.use("Agg")


def parts(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


def assert_same(got: Any, expected: Any, **tolerance: float) -> None:
    assert type(got) is type(expected)
    for one, other in zip(parts(got), parts(expected), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **(tolerance or {"rtol": 2e-6, "atol": 2e-6}))


def fed(metric: Metric, case: Any, batches: list[Any], inputs: str = "probabilities") -> Metric:
    for batch in batches:
        metric.update(*case.arguments(batch, inputs))
    return metric


def test_every_exported_class_has_a_case(request: pytest.FixtureRequest) -> None:
    conftest = next(
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if hasattr(plugin, "make_cases") and hasattr(plugin, "make_data")
    )
    covered = {type(case.make()).__name__ for case in conftest.make_cases()}
    assert covered == set(metrics.__all__)


def test_accumulated_equals_function_of_whole(case: Any, data: Any) -> None:
    assert_same(fed(case.make(), case, data.batches()).compute(), case.expected(data))


def test_value_is_not_trivial(case: Any, data: Any) -> None:
    for values in parts(case.expected(data)):
        assert not values.isnan().all()
    if case.scalar:
        value = case.expected(data)
        assert bool(((value > 1e-3) & (value < 2)).all())
        assert bool((value != case.expected(data[:80])).any())


def test_forward_gives_value_of_batch_and_accumulates(case: Any, data: Any) -> None:
    metric = case.make()
    for batch in data.batches()[2:]:
        assert_same(metric(*case.arguments(batch)), case.expected(batch))
    assert_same(metric.compute(), case.expected(data[41:]))


def test_order_of_examples_and_draws_does_not_matter(case: Any, data: Any) -> None:
    examples = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(1))
    shuffled = data[examples]
    draws = torch.randperm(len(data.logits), generator=torch.Generator().manual_seed(2))
    shuffled = type(data)(shuffled.logits[draws], shuffled.target, shuffled.mask, shuffled.out_of_domain)
    assert_same(fed(case.make(), case, shuffled.batches()).compute(), case.expected(data))


def test_pickle_and_clone_keep_state(case: Any, data: Any) -> None:
    first, *rest = data.batches()
    metric = fed(case.make(), case, [first])
    for copy in (pickle.loads(pickle.dumps(metric)), metric.clone()):
        assert_same(fed(copy, case, rest).compute(), case.expected(data))
    assert_same(metric.compute(), case.expected(first))


def test_reset_forgets(case: Any, data: Any) -> None:
    metric = fed(case.make(), case, data.batches())
    metric.reset()
    assert_same(fed(metric, case, [data[:50]]).compute(), case.expected(data[:50]))


def test_reset_in_inference_mode(case: Any, data: Any) -> None:
    metric = case.make()
    with torch.inference_mode():
        metric.reset()
        metric.update(*case.arguments(data[:50]))
    metric.update(*case.arguments(data[50:]))
    assert_same(metric.compute(), case.expected(data))


def test_logits_equal_their_probabilities(case: Any, data: Any) -> None:
    metric = fed(case.make(inputs="logits"), case, data.batches(), "logits")
    assert_same(metric.compute(), case.expected(data))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(case: Any, data: Any, dtype: torch.dtype) -> None:
    rounded = type(data)(data.logits.to(dtype), data.target, data.mask, data.out_of_domain)
    exact = type(data)(rounded.logits.float(), data.target, data.mask, data.out_of_domain)
    got = fed(case.make(inputs="logits"), case, [rounded], "logits").compute()
    assert_same(got, case.expected(exact))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_probabilities_are_accepted(case: Any, data: Any, dtype: torch.dtype) -> None:
    preds, second = case.arguments(data)
    metric = case.make()
    metric.update(preds.to(dtype), second)
    for values in parts(metric.compute()):
        assert values.dtype in {torch.float32, torch.int64}
    if case.scalar:
        torch.testing.assert_close(metric.compute(), case.expected(data), rtol=0.1, atol=0.05)


def test_values_are_checked_unless_that_is_declined(case: Any, data: Any) -> None:
    preds, second = case.arguments(data[:50])
    with pytest.raises(ValueError, match="expected"):
        case.make().update(2 * preds, second)
    case.make(validate_args=False).update(2 * preds, second)


def test_empty_batch_changes_nothing(case: Any, data: Any) -> None:
    metric = fed(case.make(), case, [data[:0], data[:50], data[:0]])
    assert_same(metric.compute(), case.expected(data[:50]))


def test_no_example_at_all_is_nan(case: Any, data: Any) -> None:
    value = fed(case.make(), case, [data[:0]]).compute()
    measured = parts(value) if case.scalar else parts(value)[-1:]
    assert all(bool(part.isnan().all()) for part in measured)


def test_conversion_of_dtype_leaves_sums_alone(case: Any, data: Any) -> None:
    metric = fed(case.make(), case, data.batches()[:2])
    metric = metric.half().float()
    assert_same(fed(metric, case, data.batches()[2:]).compute(), case.expected(data))


def test_device_without_float64(case: Any, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "accumulation_dtype", lambda _: torch.float32)
    metric = case.make().to("cpu")
    assert all(
        state.dtype != torch.float64 for state in metric.metric_state.values() if isinstance(state, Tensor)
    )
    assert_same(fed(metric, case, data.batches()).compute(), case.expected(data), rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
def test_cuda(case: Any, data: Any) -> None:
    metric = case.make().to("cuda")
    for batch in data.batches():
        metric.update(*(argument.to("cuda") for argument in case.arguments(batch)))
    value = metric.compute()
    assert all(part.device.type == "cuda" for part in parts(value))
    moved = [part.cpu() for part in parts(value)]
    assert_same(tuple(moved), tuple(parts(case.expected(data))), rtol=1e-5, atol=1e-5)


def test_plot(case: Any, data: Any) -> None:
    import matplotlib.pyplot as plt

    metric = fed(case.make(), case, data.batches())
    figure, axes = metric.plot()
    assert axes.get_figure() is figure
    assert axes.has_data()
    assert bool(axes.get_legend_handles_labels()[1]) == (axes.get_legend() is not None)
    _, given = plt.subplots()
    assert metric.plot(metric.compute(), ax=given)[1] is given
    plt.close("all")


def test_collection_does_not_confuse_metrics(request: pytest.FixtureRequest, data: Any) -> None:
    """The first batch is such that states coincide by chance: one draw, repeated."""
    conftest = request.config.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    cases = [case for case in conftest.make_cases() if case.second == "target"]
    first = data[:20]
    first = type(data)(first.logits[:1].expand(6, -1, -1), first.target, first.mask, first.out_of_domain)
    batches = [first, *data.batches()]
    collection = MetricCollection({case.name: case.make() for case in cases})
    for batch in batches:
        collection.update(*cases[0].arguments(batch))
    values = collection.compute()
    for case in cases:
        assert_same(values[case.name], fed(case.make(), case, batches).compute())
    groups = {frozenset(group) for group in collection.compute_groups.values()}
    assert {"ece", "oe", "bars"} in groups
    assert {"curve", "aurc", "eaurc"} in groups
    assert {"pavpu"} in groups


def test_expected_and_predictive_entropy_stay_apart_in_a_collection() -> None:
    collection = MetricCollection([metrics.PredictiveEntropy(), metrics.ExpectedEntropy()])
    collection.update(torch.tensor([[[0.9, 0.1]]]))
    collection.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
    values = collection.compute()
    assert values["PredictiveEntropy"] > values["ExpectedEntropy"] + 0.1


class Mirrored(metrics.BrierScore):
    """A metric that adds other predictions than its parent."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        super().update(preds.flip(-1), target)


def test_a_class_that_overrides_the_update_stays_apart_in_a_collection() -> None:
    batches = [
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0])),
        (torch.tensor([[0.9, 0.1]]), torch.tensor([0])),
    ]
    collection, alone = MetricCollection({"plain": metrics.BrierScore(), "mirrored": Mirrored()}), Mirrored()
    for batch in batches:
        collection.update(*batch)
        alone.update(*batch)
    assert collection.compute()["mirrored"] == alone.compute() > collection.compute()["plain"] + 0.5


def test_checks_can_be_turned_off_later() -> None:
    metric = metrics.BrierScore()
    metric.validate_args = False
    metric.update(torch.tensor([[0.9, 0.2]]), torch.tensor([0]))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, tuple[Tensor, ...]]]]:
    folder = tmp_path_factory.mktemp("gloo")
    outputs = [str(folder / f"rank{rank}.pt") for rank in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        main, cases = importlib.import_module("two_processes").main, str(HERE / "conftest.py")
        arguments = ((cases, rank, str(folder / "store"), output) for rank, output in enumerate(outputs))
        processes = forked_here(main, *arguments)
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(output) for output in outputs]


@pytest.mark.parametrize("kind", ["shared", "one_sided", "again"])
def test_two_processes_equal_one(case: Any, data: Any, two_processes: list[Any], kind: str) -> None:
    batches = data.batches() + (data.batches()[:2] if kind == "again" else [])
    expected = fed(case.make(), case, batches).compute()
    for answers in two_processes:
        assert_same(answers[kind][case.name], parts(expected))


def test_computing_nothing_warns_and_is_nan() -> None:
    metric = metrics.OODAUROC()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert metric.compute().isnan()
    assert any("compute" in str(warning.message) for warning in caught)


def test_a_gradient_is_declared_where_a_value_has_one(case: Any, data: Any) -> None:
    metric = case.make()
    preds, *others = case.arguments(data.batches()[0], "probabilities")
    value = metric(preds.clone().requires_grad_(), *others)
    assert metric.is_differentiable == any(each.requires_grad for each in parts(value))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is (deprecated|not supported)")
@pytest.mark.filterwarnings(
    "ignore:This property will be removed in 2.0.0:DeprecationWarning"
)  # torchmetrics' own
def test_torch_scripts_every_metric(case: Any) -> None:
    torch.jit.script(case.make())
