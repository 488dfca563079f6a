"""Significance against scipy and mpmath: Welch's test, intervals of means, Holm's correction."""

import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import norm

from probattn.metrics import functional


def scipy_p_value(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns of samples that hardly vary
        return np.asarray(stats.ttest_ind(first, second, equal_var=False).pvalue)


@pytest.mark.parametrize(("p", "q"), [(2, 2), (3, 20), (20, 20), (100, 7), (1000, 1000)])
def test_p_value_against_scipy(p: int, q: int) -> None:
    rng = np.random.default_rng(p)
    scale = 10 ** rng.uniform(-3, 0, size=(2, 300))
    first = rng.normal(size=(p, 300)) * scale[0]
    second = rng.normal(size=(q, 300)) * scale[1] + rng.normal(size=300) * scale.max(0) / np.sqrt(min(p, q))
    expected = scipy_p_value(first, second)
    got = functional.welch_p_value(torch.tensor(first), torch.tensor(second)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert expected.min() < 0.05
    assert expected.max() > 0.5


def test_p_value_against_mpmath() -> None:
    """From the moments in 40 digits, without scipy: degrees of freedom by Welch, the tail by the incomplete beta."""
    rng = np.random.default_rng(3)
    for p, q, shift in ((2, 5, 0.1), (20, 20, 0.0), (20, 7, 3.0), (9, 30, 30.0)):
        first, second = rng.normal(size=p), 2 * rng.normal(size=q) + shift
        with mpmath.workdps(40):
            one, other = ([mpmath.mpf(value) for value in sample] for sample in (first, second))
            means = [mpmath.fsum(sample) / len(sample) for sample in (one, other)]
            errors = [
                mpmath.fsum((value - mean) ** 2 for value in sample) / (len(sample) - 1) / len(sample)
                for sample, mean in zip((one, other), means, strict=True)
            ]
            df = sum(errors) ** 2 / (errors[0] ** 2 / (p - 1) + errors[1] ** 2 / (q - 1))
            t_squared = (means[0] - means[1]) ** 2 / sum(errors)
            expected = float(mpmath.betainc(df / 2, 0.5, 0, df / (df + t_squared), regularized=True))
        got = functional.welch_p_value(torch.tensor(first), torch.tensor(second)).item()
        assert got == pytest.approx(expected, rel=1e-11)


def test_far_tails_keep_relative_accuracy() -> None:
    first = np.linspace(-1, 1, 20)[:, None] + np.zeros((1, 5))
    second = first + np.array([[5.0, 50.0, 500.0, 5e3, 5e4]])
    expected = stats.ttest_ind(first, second, equal_var=False).pvalue
    assert expected[-1] < 1e-100
    np.testing.assert_allclose(
        functional.welch_p_value(torch.tensor(first), torch.tensor(second)), expected, rtol=1e-9
    )


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12),
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12),
)
def test_p_value_against_scipy_on_any_sample(first: list[float], second: list[float]) -> None:
    a, b = np.array(first), np.array(second)
    assume(np.ptp(a) + np.ptp(b) > 1e-3)  # below, scipy's own variance is rounding noise
    expected = float(scipy_p_value(a, b))
    values = pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert functional.welch_p_value(torch.tensor(a), torch.tensor(b)).item() == values


def test_samples_that_do_not_vary_are_certain() -> None:
    third = torch.full((7, 1), 1 / 3, dtype=torch.float64)  # seven thirds do not sum exactly
    assert functional.welch_p_value(third, 1 - third).tolist() == [0.0]
    assert functional.welch_p_value(third, third).tolist() == [0.0]
    assert functional.welch_p_value(torch.tensor([0.9]), torch.tensor([0.1])).item() == 0  # one draw


def test_one_sample_that_does_not_vary() -> None:
    first, second = np.full(5, 0.3), np.array([0.2, 0.35, 0.3, 0.5, 0.4])
    expected = scipy_p_value(first, second)
    got = functional.welch_p_value(torch.tensor(first), torch.tensor(second)).item()
    assert got == pytest.approx(expected, rel=1e-10)


def test_tiny_variances_do_not_underflow() -> None:
    sample = 1e-160 * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    shifted = sample + 1e-160
    expected = functional.welch_p_value(sample * 1e160, shifted * 1e160)
    got = functional.welch_p_value(sample, shifted)
    assert not got.isnan()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=0)


def test_equal_means_give_one() -> None:
    sample = torch.tensor([0.25, 0.5, 0.75])
    assert functional.welch_p_value(sample, sample).item() == 1


def test_top_two_classes_are_compared() -> None:
    draws = np.random.default_rng(0).dirichlet([3.0, 1.0, 2.0, 0.5], size=(20, 60))
    got = functional.top_two_p_value(torch.tensor(draws))
    for n in range(60):
        last, best = np.argsort(draws[:, n].mean(0))[-2:]
        expected = stats.ttest_ind(draws[:, n, best], draws[:, n, last], equal_var=False).pvalue
        assert got[n].item() == pytest.approx(expected, rel=1e-9)


def test_wrong_samples_are_refused() -> None:
    message = r"expected samples \[P, ...\] and \[Q, ...\], got \[2, 3\] and \[2, 4\]"
    with pytest.raises(ValueError, match=message):
        functional.welch_p_value(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="at least one value"):
        functional.welch_p_value(torch.zeros(0, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="top_two_p_value: expected draws"):
        functional.top_two_p_value(torch.ones(4, 2) / 2)


def test_a_single_value_is_taken_as_known() -> None:
    """A sample of one has no spread that could be seen: the test is Student's of the other sample against it."""
    sample = np.array([1.0, 2.0, 4.0, 3.5])
    expected = stats.ttest_1samp(sample, 0.7).pvalue
    one, several = torch.tensor([0.7], dtype=torch.float64), torch.tensor(sample)
    for first, second in ((one, several), (several, one)):
        assert functional.welch_p_value(first, second).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("values", [[0.2, 0.5], [0.2, 0.5, 0.9], [-3.0, 1e-3, 4.0, 4.5, 100.0]])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_it_is_students(values, level):
    low, high = stats.t.interval(
        level, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )
    found = functional.mean_interval(iter(values), level=level)
    assert found == (
        pytest.approx(sum(values) / len(values)),
        pytest.approx(low),
        pytest.approx(high),
        len(values),
    )


def test_that_of_differences_is_that_of_the_paired_test():
    ours, theirs = [0.83, 0.82, 0.84, 0.80], [0.81, 0.83, 0.82, 0.79]
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    found = functional.mean_interval(a - b for a, b in zip(ours, theirs, strict=True))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_one_value_has_no_interval():
    assert functional.mean_interval([0.25]) == (0.25, None, None, 1)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0, 2.0], 1.0), ([1.0, 2.0], 0.0)])
def test_what_has_none_is_refused(values, level):
    with pytest.raises(ValueError, match=rf"got {len(values)} values and {level}"):
        functional.mean_interval(values, level=level)


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
    assert [p <= alpha for p in functional.holm(p_values)] == claimed(p_values, alpha)


@given(P_VALUES)
def test_adjusted_values_keep_the_order_and_are_no_smaller(p_values: list[float]) -> None:
    adjusted = functional.holm(p_values)
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
    assert functional.holm(p_values) == pytest.approx(adjusted)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_wrong_claims_are_rare_however_comparisons_depend(correlation: float) -> None:
    """18 comparisons without any difference: at most 5% of families hold a claim, where half did uncorrected."""
    rng, reports = np.random.default_rng(0), 4000
    shared = rng.standard_normal((reports, 1))
    z = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * rng.standard_normal((reports, 18))
    p_values = 2 * norm.sf(np.abs(z))
    raw = (p_values.min(axis=1) < 0.05).mean()
    corrected = np.mean([min(functional.holm(row.tolist())) < 0.05 for row in p_values])
    assert corrected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / reports)
    assert raw > (0.55 if correlation == 0 else 0.1)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_other_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"p values in \[0, 1\]"):
        functional.holm([0.5, value])
