"""Early stopping on sequences whose answer is plain."""

import math
from dataclasses import asdict

import pytest

from probattn.inference.early_stopping import EarlyStopping, StoppingState


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
    ("options", "words"),
    [
        ({"patience": 0}, "patience.*>= 1"),
        ({"mode": "less"}, "mode.*'less'"),
        ({"min_delta": -1.0}, "min_delta"),
        ({"also": {"accuracy": "more"}}, "also: .*'min' or 'max'.*'more'"),
        ({"also": {"loss": "min"}}, "also: expected metrics other than 'loss'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EarlyStopping(**options)
