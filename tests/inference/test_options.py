"""KL schedules against their closed forms, and early stopping on sequences whose answer is plain."""

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probattn.inference.options import EarlyStopping, KLSchedule, StoppingState
from probattn.options import Options


def test_constant_is_final_from_the_first_step() -> None:
    assert KLSchedule("constant", final=0.3).weight(0, 10) == 0.3


@pytest.mark.parametrize(("step", "weight"), [(0, 0.0), (1, 0.2), (10, 2.0), (11, 2.0), (99, 2.0)])
def test_linear_rises_to_final_at_the_end_of_the_warm_up(step: int, weight: float) -> None:
    assert KLSchedule("linear", final=2.0, warmup_steps=10).weight(step, 100) == pytest.approx(
        weight, abs=1e-15
    )


def test_warm_up_is_a_fraction_of_the_run_unless_given_in_steps() -> None:
    assert KLSchedule("linear", warmup_fraction=0.25).weight(5, 40) == 0.5
    assert KLSchedule("linear", warmup_fraction=0.25, warmup_steps=20).weight(5, 40) == 0.25


@pytest.mark.parametrize("steepness", [0.5, 6.0, 40.0, 2000.0])
def test_sigmoid_is_the_logistic_curve_stretched_to_0_and_1(steepness: float) -> None:
    schedule = KLSchedule("sigmoid", final=0.5, warmup_steps=8, steepness=steepness)

    def logistic(x: float) -> float:
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0

    for step in range(9):
        raw = logistic(steepness * (2 * step / 8 - 1))
        low, high = logistic(-steepness), logistic(steepness)
        assert schedule.weight(step, 100) == pytest.approx(
            0.5 * (raw - low) / (high - low), rel=1e-9, abs=1e-12
        )
    assert schedule.weight(0, 100) == 0.0
    assert schedule.weight(4, 100) == pytest.approx(0.25)
    assert schedule.weight(8, 100) == 0.5


@given(
    kind=st.sampled_from(["constant", "linear", "sigmoid"]),
    final=st.floats(0, 10),
    warmup=st.integers(0, 50),
    total=st.integers(1, 60),
)
def test_weight_never_falls_and_stays_between_0_and_final(
    kind: str, final: float, warmup: int, total: int
) -> None:
    schedule = KLSchedule(kind, final=final, warmup_steps=warmup)
    weights = [schedule.weight(step, total) for step in range(total + 1)]
    assert weights == sorted(weights)
    assert weights[0] >= 0
    assert weights[-1] <= final
    assert warmup > total or weights[-1] == final


@pytest.mark.parametrize(("step", "total"), [(-1, 10), (0, 0)])
def test_a_step_outside_a_run_is_refused(step: int, total: int) -> None:
    with pytest.raises(ValueError, match="step >= 0 and total_steps >= 1"):
        KLSchedule().weight(step, total)


def follow(rule: EarlyStopping, values: list[float]) -> tuple[StoppingState, list[bool], list[bool]]:
    state = StoppingState()
    improved, exhausted = [], []
    for step, value in enumerate(values, start=1):
        improved.append(state.update(rule, {rule.metric: value}, step))
        exhausted.append(state.exhausted(rule))
    return state, improved, exhausted


def test_less_is_better_by_default() -> None:
    state, improved, exhausted = follow(EarlyStopping(patience=2), [3.0, 2.0, 2.0, 1.0, 1.5, 1.2])
    assert improved == [True, True, False, True, False, False]
    assert exhausted == [False, False, False, False, False, True]
    assert (state.best, state.best_step) == (1.0, 4)


def test_more_is_better_by_option_and_small_changes_do_not_count() -> None:
    rule = EarlyStopping("accuracy", mode="max", patience=1, min_delta=0.1)
    state, improved, _ = follow(rule, [0.5, 0.55, 0.65])
    assert improved == [True, False, True]
    assert (state.best, state.best_step) == (0.65, 3)


def test_a_value_that_is_not_a_number_is_never_the_best() -> None:
    state, improved, exhausted = follow(
        EarlyStopping(patience=3), [math.nan, 1.0, math.nan, math.nan, math.nan]
    )
    assert improved == [False, True, False, False, False]
    assert exhausted[-1]
    assert state.best == 1.0


def test_infinity_can_be_improved_on() -> None:
    assert follow(EarlyStopping(), [math.inf, 1.0])[1] == [True, True]
    assert follow(EarlyStopping(mode="max"), [-math.inf, 1.0])[1] == [True, True]


BOTH = EarlyStopping("loss", patience=2, also={"accuracy": "max"})


def test_of_two_metrics_either_keeps_the_run_going_and_both_at_once_make_the_best() -> None:
    losses = [3.0, 2.0, 2.5, 2.4, 1.9, 2.0, 2.0]
    accuracies = [0.5, 0.6, 0.7, 0.7, 0.6, 0.6, 0.6]
    state, improved, since = StoppingState(), [], []
    for step, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), start=1):
        improved.append(state.update(BOTH, {"loss": loss, "accuracy": accuracy}, step))
        since.append(state.since_best)
    assert improved == [True, True, False, False, False, False, False]
    assert since == [0, 0, 0, 0, 0, 1, 2]  # step 4 equals the best accuracy, step 5 has the best loss
    assert state.exhausted(BOTH)
    assert (state.best, state.best_step) == (2.0, 2)
    assert state.marks == {"loss": 1.9, "accuracy": 0.7}


def test_of_two_metrics_what_equals_both_is_the_best() -> None:
    state = StoppingState()
    assert [state.update(BOTH, {"loss": 1.0, "accuracy": 0.5}, step) for step in (1, 2)] == [True, True]
    assert state.best_step == 2


def test_every_metric_must_be_there() -> None:
    with pytest.raises(ValueError, match="also: no validation metric is called 'accuracy'; there are loss"):
        BOTH.values({"loss": 1.0})


def test_state_survives_a_checkpoint() -> None:
    rule = EarlyStopping(patience=3)
    state, _, _ = follow(rule, [1.0, 2.0, 2.0])
    other = StoppingState(**asdict(state))
    assert other == state
    other.update(rule, {"loss": 2.0}, 4)
    assert other.exhausted(rule)
    assert not state.exhausted(rule)


def test_the_metric_is_found_by_name() -> None:
    assert EarlyStopping("accuracy", mode="max").values({"loss": 1.0, "accuracy": 0.5}) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="'acuracy'; there are loss, accuracy"):
        EarlyStopping("acuracy").values({"loss": 1.0, "accuracy": 0.5})


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (KLSchedule, {"kind": "cosine"}, "kind.*'constant', 'linear', 'sigmoid', got 'cosine'"),
        (KLSchedule, {"final": -1.0}, "final.*>= 0.*-1"),
        (KLSchedule, {"final": math.nan}, "final"),
        (KLSchedule, {"warmup_steps": -1}, "warmup_steps"),
        (KLSchedule, {"warmup_fraction": 1.5}, "warmup_fraction.*1.5"),
        (KLSchedule, {"steepness": 0.0}, "steepness"),
        (EarlyStopping, {"patience": 0}, "patience.*>= 1"),
        (EarlyStopping, {"mode": "less"}, "mode.*'less'"),
        (EarlyStopping, {"min_delta": -1.0}, "min_delta"),
        (EarlyStopping, {"also": {"accuracy": "more"}}, "also: .*'min' or 'max'.*'more'"),
        (EarlyStopping, {"also": {"loss": "min"}}, "also: expected metrics other than 'loss'"),
    ],
)
def test_options_out_of_range_are_refused(
    kind: type[Options], options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**options)
