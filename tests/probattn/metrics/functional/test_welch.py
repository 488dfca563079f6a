import math
import warnings

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from probattn.metrics.functional import regularized_incomplete_beta, top_two_p_value, welch_p_value


def beta(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    return regularized_incomplete_beta(*(torch.tensor(v, dtype=torch.float64) for v in (a, b, x))).numpy()


def scipy_p_value(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns of samples that hardly vary
        return np.asarray(scipy.stats.ttest_ind(first, second, equal_var=False).pvalue)


def test_incomplete_beta_against_scipy() -> None:
    rng = np.random.default_rng(0)
    a, b = 10 ** rng.uniform(-2, 2.5, size=(2, 5000))
    x = rng.random(5000)
    expected = scipy.special.betainc(a, b, x)
    np.testing.assert_allclose(beta(a, b, x), expected, rtol=1e-11, atol=1e-14)


def test_incomplete_beta_at_the_ends() -> None:
    a, b = np.array([0.5, 30.0, 1.0]), np.array([0.5, 0.5, 7.0])
    assert beta(a, b, np.zeros(3)).tolist() == [0, 0, 0]
    assert beta(a, b, np.ones(3)).tolist() == [1, 1, 1]
    assert beta(np.zeros(0), np.zeros(0), np.zeros(0)).shape == (0,)


def test_incomplete_beta_of_large_parameters() -> None:
    a, x = 10 ** np.linspace(3, 6, 100), np.linspace(0.99, 1, 100)
    b = np.full(100, 0.5)
    np.testing.assert_allclose(beta(a, b, x), scipy.special.betainc(a, b, x), rtol=1e-7, atol=1e-12)


def test_incomplete_beta_of_nan_is_nan_and_leaves_the_others() -> None:
    got = beta(np.array([math.nan, 3.0]), np.array([0.5, 0.5]), np.array([0.5, 0.5]))
    assert np.isnan(got[0])
    assert got[1] == pytest.approx(scipy.special.betainc(3.0, 0.5, 0.5), rel=1e-12)


@pytest.mark.parametrize(("p", "q"), [(2, 2), (3, 20), (20, 20), (100, 7), (1000, 1000)])
def test_p_value_against_scipy(p: int, q: int) -> None:
    rng = np.random.default_rng(p)
    scale = 10 ** rng.uniform(-3, 0, size=(2, 300))
    first = rng.normal(size=(p, 300)) * scale[0]
    second = rng.normal(size=(q, 300)) * scale[1] + rng.normal(size=300) * scale.max(0) / np.sqrt(min(p, q))
    expected = scipy_p_value(first, second)
    got = welch_p_value(torch.tensor(first), torch.tensor(second)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert expected.min() < 0.05
    assert expected.max() > 0.5


def test_far_tails_keep_relative_accuracy() -> None:
    first = np.linspace(-1, 1, 20)[:, None] + np.zeros((1, 5))
    second = first + np.array([[5.0, 50.0, 500.0, 5e3, 5e4]])
    expected = scipy.stats.ttest_ind(first, second, equal_var=False).pvalue
    assert expected[-1] < 1e-100
    np.testing.assert_allclose(welch_p_value(torch.tensor(first), torch.tensor(second)), expected, rtol=1e-9)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12),
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12),
)
def test_p_value_against_scipy_on_any_sample(first: list[float], second: list[float]) -> None:
    a, b = np.array(first), np.array(second)
    assume(np.ptp(a) + np.ptp(b) > 1e-3)  # below, scipy's own variance is rounding noise
    expected = float(scipy_p_value(a, b))
    assert welch_p_value(torch.tensor(a), torch.tensor(b)).item() == pytest.approx(
        expected, rel=1e-6, abs=1e-12
    )


def test_samples_that_do_not_vary_are_certain() -> None:
    third = torch.full((7, 1), 1 / 3, dtype=torch.float64)  # seven thirds do not sum exactly
    assert welch_p_value(third, 1 - third).tolist() == [0.0]
    assert welch_p_value(third, third).tolist() == [0.0]
    assert welch_p_value(torch.tensor([0.9]), torch.tensor([0.1])).item() == 0  # one draw


def test_one_sample_that_does_not_vary() -> None:
    first, second = np.full(5, 0.3), np.array([0.2, 0.35, 0.3, 0.5, 0.4])
    expected = scipy_p_value(first, second)
    got = welch_p_value(torch.tensor(first), torch.tensor(second)).item()
    assert got == pytest.approx(expected, rel=1e-10)


def test_tiny_variances_do_not_underflow() -> None:
    sample = 1e-160 * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    shifted = sample + 1e-160
    expected = welch_p_value(sample * 1e160, shifted * 1e160)
    got = welch_p_value(sample, shifted)
    assert not got.isnan()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=0)


def test_equal_means_give_one() -> None:
    sample = torch.tensor([0.25, 0.5, 0.75])
    assert welch_p_value(sample, sample).item() == 1


def test_top_two_classes_are_compared() -> None:
    draws = np.random.default_rng(0).dirichlet([3.0, 1.0, 2.0, 0.5], size=(20, 60))
    got = top_two_p_value(torch.tensor(draws))
    for n in range(60):
        last, best = np.argsort(draws[:, n].mean(0))[-2:]
        expected = scipy.stats.ttest_ind(draws[:, n, best], draws[:, n, last], equal_var=False).pvalue
        assert got[n].item() == pytest.approx(expected, rel=1e-9)


def test_wrong_samples_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected samples \[P, ...\] and \[Q, ...\], got \[2, 3\] and \[2, 4\]"
    ):
        welch_p_value(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="at least one value"):
        welch_p_value(torch.zeros(0, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="top_two_p_value: expected draws"):
        top_two_p_value(torch.ones(4, 2) / 2)


def test_a_single_value_is_taken_as_known() -> None:
    """A sample of one has no spread that could be seen: the test is Student's of the other sample against it."""
    sample = np.array([1.0, 2.0, 4.0, 3.5])
    expected = scipy.stats.ttest_1samp(sample, 0.7).pvalue
    one, several = torch.tensor([0.7], dtype=torch.float64), torch.tensor(sample)
    for first, second in ((one, several), (several, one)):
        assert welch_p_value(first, second).item() == pytest.approx(expected, rel=1e-12)
