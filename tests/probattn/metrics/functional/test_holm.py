"""Holm's correction against its step-down definition, worked out by hand, and with no difference there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from probattn.metrics.functional import holm

P_VALUES = st.lists(st.floats(0, 1, allow_nan=False), max_size=12)


def claimed(p_values: list[float], alpha: float) -> list[bool]:
    """Holm 1979: from the smallest on, while p_(i) <= alpha / (m - i + 1)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found = [False] * len(p_values)
    for rank, place in enumerate(order):
        if p_values[place] * (len(p_values) - rank) > alpha:
            break
        found[place] = True
    return found


@given(P_VALUES, st.floats(0, 0.99))
def test_adjusted_values_decide_as_the_steps_do(p_values: list[float], alpha: float) -> None:
    assert [p <= alpha for p in holm(p_values)] == claimed(p_values, alpha)


@given(P_VALUES)
def test_adjusted_values_keep_the_order_and_are_no_smaller(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [q for _, q in pairs] == sorted(adjusted)
    assert all(q <= min(1, len(p_values) * p) for p, q in zip(p_values, adjusted, strict=True))  # Bonferroni


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([], []),
        ([0.04], [0.04]),
        # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which the one before it exceeds
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([0.9, 0.6, 0.0], [1.0, 1.0, 0.0]),
    ],
)
def test_by_hand(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_wrong_claims_are_rare_however_comparisons_depend(correlation: float) -> None:
    """18 comparisons without any difference: at most 5% of families hold a claim, where half did uncorrected."""
    rng, reports = np.random.default_rng(0), 4000
    shared = rng.standard_normal((reports, 1))
    z = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * rng.standard_normal((reports, 18))
    p_values = 2 * norm.sf(np.abs(z))
    raw = (p_values.min(axis=1) < 0.05).mean()
    corrected = np.mean([min(holm(row.tolist())) < 0.05 for row in p_values])
    assert corrected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / reports)
    assert raw > (0.55 if correlation == 0 else 0.1)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_other_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"p values in \[0, 1\]"):
        holm([0.5, value])
