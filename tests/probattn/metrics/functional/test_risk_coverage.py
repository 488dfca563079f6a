import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probattn.metrics.functional import (
    area_under_risk_coverage,
    excess_area_under_risk_coverage,
    risk_coverage_curve,
)


def plain_curve(uncertainty: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Without ties: sort, then the running mean."""
    order = np.argsort(uncertainty, kind="stable")
    return np.array([loss[order[: i + 1]].mean() for i in range(len(loss))])


def mean_over_orders(uncertainty: list[int], loss: list[float]) -> np.ndarray:
    """Average of the curve over every order that sorts the uncertainty."""
    orders = [
        order
        for order in itertools.permutations(range(len(loss)))
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(order))
    ]
    curves = [np.cumsum([loss[i] for i in order]) / np.arange(1, len(loss) + 1) for order in orders]
    return np.mean(curves, axis=0)


def test_against_plain_loops() -> None:
    rng = np.random.default_rng(0)
    uncertainty = rng.permutation(200) / 200
    for loss in ((rng.random(200) < uncertainty).astype(float), rng.exponential(size=200)):
        expected = plain_curve(uncertainty, loss)
        curve = risk_coverage_curve(torch.tensor(uncertainty), torch.tensor(loss))
        np.testing.assert_allclose(curve.risk, expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(curve.coverage, np.arange(1, 201) / 200, rtol=1e-6)
        area = area_under_risk_coverage(torch.tensor(uncertainty), torch.tensor(loss)).item()
        assert area == pytest.approx(expected.mean(), rel=1e-6)
        best = plain_curve(loss, loss).mean()
        excess = excess_area_under_risk_coverage(torch.tensor(uncertainty), torch.tensor(loss)).item()
        assert excess == pytest.approx(expected.mean() - best, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6))
def test_ties_are_averaged_over_orders(pairs: list[tuple[int, int]]) -> None:
    uncertainty, loss = [u for u, _ in pairs], [float(x) for _, x in pairs]
    expected = mean_over_orders(uncertainty, loss)
    curve = risk_coverage_curve(torch.tensor(uncertainty).float(), torch.tensor(loss))
    np.testing.assert_allclose(curve.risk, expected, rtol=1e-6, atol=1e-7)


def test_constant_uncertainty_gives_the_risk_everywhere() -> None:
    loss = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    assert risk_coverage_curve(torch.zeros(5), loss).risk.tolist() == pytest.approx([0.6] * 5)
    assert area_under_risk_coverage(torch.zeros(5), loss).item() == pytest.approx(0.6)


def test_best_area_approaches_its_limit() -> None:
    """Geifman et al. 2019: r + (1 - r) log(1 - r) for an error rate r."""
    rate, size = 0.3, 20_000
    loss = (torch.arange(size) >= (1 - rate) * size).float()
    best = area_under_risk_coverage(torch.arange(size).double(), loss).item()
    assert best == pytest.approx(rate + (1 - rate) * math.log(1 - rate), abs=1e-4)
    assert excess_area_under_risk_coverage(torch.arange(size).double(), loss).item() == 0
    worst = excess_area_under_risk_coverage(-torch.arange(size).double(), loss).item()
    assert worst == pytest.approx(rate - rate * math.log(rate) - best, abs=1e-3)


def test_all_right_and_all_wrong() -> None:
    ranks = torch.arange(4).float()
    assert area_under_risk_coverage(ranks, torch.zeros(4)).item() == 0
    assert area_under_risk_coverage(ranks, torch.ones(4)).item() == 1
    assert excess_area_under_risk_coverage(ranks, torch.ones(4)).item() == 0


def test_bool_and_integer_losses() -> None:
    ranks, wrong = torch.arange(4).float(), torch.tensor([False, True, False, True])
    expected = area_under_risk_coverage(ranks, wrong.double())
    assert area_under_risk_coverage(ranks, wrong).equal(expected)
    assert area_under_risk_coverage(ranks, wrong.long()).equal(expected)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=40))
def test_only_the_ranking_matters(pairs: list[tuple[float, bool]]) -> None:
    uncertainty = torch.tensor([u for u, _ in pairs], dtype=torch.float64)
    loss = torch.tensor([x for _, x in pairs])
    ranks = torch.unique(uncertainty, return_inverse=True)[1].double()
    assert area_under_risk_coverage(uncertainty, loss).equal(area_under_risk_coverage(ranks, loss))
    assert 0 <= excess_area_under_risk_coverage(uncertainty, loss).item() <= 1


def test_empty_and_single() -> None:
    none = torch.zeros(0)
    assert area_under_risk_coverage(none, none).isnan()
    assert excess_area_under_risk_coverage(none, none).isnan()
    assert risk_coverage_curve(none, none).risk.shape == (0,)
    assert risk_coverage_curve(torch.tensor([0.2]), torch.tensor([1.0])).risk.tolist() == [1.0]


def test_wrong_values_are_refused() -> None:
    good = torch.tensor([0.1, 0.2])
    with pytest.raises(ValueError, match=r"loss: expected the shape of uncertainty, \[2\], got \[1\]"):
        risk_coverage_curve(good, good[:1])
    with pytest.raises(ValueError, match="uncertainty: expected numbers, got NaN"):
        risk_coverage_curve(good * math.nan, good)
    with pytest.raises(ValueError, match="loss: expected numbers, got NaN"):
        area_under_risk_coverage(good, good * math.nan)
