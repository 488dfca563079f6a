"""Risk against coverage, and PAvPU, against plain loops."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probattn.metrics.functional import (
    area_under_risk_coverage,
    certainty_counts,
    excess_area_under_risk_coverage,
    pavpu,
    pavpu_from_counts,
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


RNG = np.random.default_rng(4)
CENTRE = 1.2 * RNG.normal(size=(1, 150, 3))
LOGITS = CENTRE + 1.5 * RNG.normal(size=(20, 150, 3))
DRAWS = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LABELS = np.where(RNG.random(150) < 0.6, CENTRE[0].argmax(-1), RNG.integers(0, 3, 150))
PREDS, TARGET = torch.tensor(DRAWS), torch.tensor(LABELS)


def plain_pavpu(threshold: float, measure: Any) -> tuple[float, list[list[int]]]:
    counts = [[0, 0], [0, 0]]
    for n in range(DRAWS.shape[1]):
        winner = DRAWS[:, n].mean(0).argmax()
        counts[int(winner == LABELS[n])][int(measure(DRAWS[:, n]) < threshold)] += 1
    return (counts[0][0] + counts[1][1]) / DRAWS.shape[1], counts


def p_value(draws: np.ndarray) -> float:
    second, first = np.argsort(draws.mean(0))[-2:]
    return float(scipy.stats.ttest_ind(draws[:, first], draws[:, second], equal_var=False).pvalue)


def total(draws: np.ndarray) -> float:
    return float(scipy.stats.entropy(draws.mean(0)))


def mutual(draws: np.ndarray) -> float:
    return total(draws) - float(scipy.stats.entropy(draws, axis=-1).mean())


@pytest.mark.parametrize("threshold", [1e-6, 0.01, 0.05, 0.5])
def test_against_scipy(threshold: float) -> None:
    expected, counts = plain_pavpu(threshold, p_value)
    assert all(counts[row][column] > 0 for row in range(2) for column in range(2))
    assert pavpu(PREDS, TARGET, threshold=threshold).item() == pytest.approx(expected, abs=1e-6)
    assert certainty_counts(PREDS, TARGET, thresholds=[threshold]).tolist() == [counts]


@pytest.mark.parametrize(
    ("criterion", "measure", "threshold"),
    [("predictive_entropy", total, 0.7), ("mutual_information", mutual, 0.25)],
)
def test_other_criteria(criterion: Any, measure: Any, threshold: float) -> None:
    expected, counts = plain_pavpu(threshold, measure)
    assert all(counts[row][column] > 0 for row in range(2) for column in range(2))
    got = pavpu(PREDS, TARGET, criterion=criterion, threshold=threshold).item()
    assert got == pytest.approx(expected, abs=1e-6)


def test_default_threshold() -> None:
    assert pavpu(PREDS, TARGET).equal(pavpu(PREDS, TARGET, threshold=0.05))


def test_several_thresholds_at_once() -> None:
    thresholds = [0.0, 1e-4, 0.05, 0.9, 2.0]
    apart = torch.stack([pavpu(PREDS, TARGET, threshold=value) for value in thresholds])
    together = pavpu(PREDS, TARGET, threshold=thresholds)
    assert together.shape == (5,)
    assert together.equal(apart)
    accuracy = (PREDS.mean(0).argmax(-1) == TARGET).float().mean()
    torch.testing.assert_close(together[0], 1 - accuracy)  # nothing is certain
    torch.testing.assert_close(together[-1], accuracy)  # everything is


@pytest.mark.parametrize("num_draws", [1, 5])
def test_draws_that_do_not_vary_give_the_accuracy(num_draws: int) -> None:
    preds = PREDS[:1].expand(num_draws, -1, -1)
    accuracy = (PREDS[0].argmax(-1) == TARGET).float().mean()
    assert 0.3 < accuracy < 0.9
    torch.testing.assert_close(pavpu(preds, TARGET), accuracy)


def test_extremes() -> None:
    target = torch.tensor([0, 0, 1, 1])
    sure = torch.tensor([[1.0, 0.0]]).expand(10, 4, 2)
    assert pavpu(sure, target).item() == 0.5
    expected = 0
    assert certainty_counts(sure, target, thresholds=[0.0])[0, :, 1].sum() == expected
    even = torch.full((10, 4, 2), 0.5)
    assert pavpu(even, target).item() == 0.5  # no spread: certain
    opposed = torch.eye(2).repeat(5, 1).unsqueeze(1).expand(10, 4, 2)  # draws contradict each other
    counts = certainty_counts(opposed, target, thresholds=[0.05])
    assert counts[0, :, 1].sum() == 0
    assert not pavpu(opposed, target).isnan()


def test_float32_decides_as_float64() -> None:
    thresholds = [0.001, 0.05, 0.3]
    assert pavpu(PREDS.float(), TARGET, threshold=thresholds).equal(
        pavpu(PREDS, TARGET, threshold=thresholds)
    )


def test_ignored_and_empty() -> None:
    marked = TARGET.clone()
    marked[::3] = -100
    kept = marked != -100
    assert pavpu(PREDS, marked, ignore_index=-100).equal(pavpu(PREDS[:, kept], TARGET[kept]))
    assert pavpu(PREDS[:, :0], TARGET[:0]).isnan()
    assert pavpu(PREDS[:, :0], TARGET[:0], threshold=[0.1, 0.2]).isnan().tolist() == [True, True]
    assert pavpu_from_counts(torch.zeros(1, 2, 2, dtype=torch.long)).isnan().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "variance"}, "criterion: expected one of.*'variance'"),
        ({"criterion": "predictive_entropy"}, "threshold: expected a number of nats"),
        ({"threshold": []}, "threshold: expected one or more finite numbers"),
        ({"threshold": math.nan}, "finite"),
        ({"threshold": [0.1, math.inf]}, "finite"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pavpu(PREDS, TARGET, **options)


def test_averaged_predictions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pavpu: expected draws \[P, N, C\]"):
        pavpu(PREDS.mean(0), TARGET)
