"""KL schedules against their closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probattn.inference.schedules import KLSchedule


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "cosine"}, "kind.*'constant', 'linear', 'sigmoid', got 'cosine'"),
        ({"final": -1.0}, "final.*>= 0.*-1"),
        ({"final": math.nan}, "final"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup_fraction": 1.5}, "warmup_fraction.*1.5"),
        ({"steepness": 0.0}, "steepness"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        KLSchedule(**options)


@pytest.mark.parametrize(("step", "total"), [(-1, 10), (0, 0)])
def test_a_step_outside_a_run_is_refused(step: int, total: int) -> None:
    with pytest.raises(ValueError, match="step >= 0 and total_steps >= 1"):
        KLSchedule().weight(step, total)
