"""Thresholds that keep a promised error: scipy's intervals, exhaustive tests, and risks that are known."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

from probattn.metrics.functional import cheapest_threshold, controlled_threshold, error_bound, sequence_start


@pytest.mark.parametrize(("errors", "answered"), [(0, 1), (0, 59), (3, 40), (40, 1000), (999, 1000), (7, 7)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_bound_is_that_of_scipy(errors, answered, confidence):
    known = binomtest(errors, answered, alternative="less").proportion_ci(confidence, method="exact")
    assert error_bound(errors, answered, confidence) == pytest.approx(known.high, rel=1e-9)


def test_nothing_answered_has_no_bound():
    assert error_bound(0, 0) == 1


def _by_hand(scores, wrong, error, confidence, start):
    """The same in a loop over all thresholds."""
    taken = (-math.inf, 0, 0)
    for value in [start, *sorted(set(scores[scores > start]))]:
        answered = int((scores <= value).sum())
        errors = int(wrong[scores <= value].sum())
        if binom.cdf(errors, answered, error) > 1 - confidence:
            break
        taken = (value, answered, errors)
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_threshold_is_that_of_a_loop(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.rand(300, generator=generator) * 40).round().to(dtype) / 40  # with ties
    wrong = torch.rand(300, generator=generator) < scores.float() * 0.4
    start = 0.2
    found = controlled_threshold(scores, wrong, error=0.1, confidence=0.9, start=start)
    value, answered, errors = _by_hand(scores.double().numpy(), wrong.numpy(), 0.1, 0.9, start)
    assert (found.answered, found.errors) == (answered, errors)
    assert found.attained == (answered > 0)
    if answered:
        assert int((scores.double() <= found.threshold).sum()) == answered
        assert found.threshold >= value and found.bound <= 0.1 + 1e-9


def _draw(generator, size, risk):
    """Scores that are uniform, and errors of a risk that is a function of the score."""
    scores = generator.uniform(size=size)
    return torch.from_numpy(scores), torch.from_numpy(generator.uniform(size=size) < risk(scores))


@pytest.mark.parametrize(
    ("risk", "selective"),
    [
        (lambda s: 0.3 * s, lambda t: 0.15 * t),
        # the surest are wrong more often than promised, those after them hardly ever
        (
            lambda s: np.where(s < 0.1, 0.15, np.where(s < 0.6, 0.0, 0.2)),
            lambda t: (0.15 * np.minimum(t, 0.1) + 0.2 * np.maximum(t - 0.6, 0)) / t,
        ),
    ],
)
def test_the_promise_holds_as_often_as_promised(risk, selective):
    """Of 1,500 data sets whose risk at each threshold is known in closed form; a start from other data."""
    generator = np.random.default_rng(0)
    broken = used = 0
    for _ in range(1500):
        start = sequence_start(*_draw(generator, 300, risk), error=0.08)
        found = controlled_threshold(*_draw(generator, 400, risk), error=0.08, confidence=0.9, start=start)
        used += found.attained
        broken += found.attained and selective(min(found.threshold, 1.0)) > 0.08
    assert used > 500
    assert binomtest(broken, 1500, 0.1, alternative="greater").pvalue > 1e-3


def test_without_correction_for_many_thresholds_it_is_tight():
    """Where the risk rises through the promise the error of the procedure is not far below what is allowed."""
    generator = np.random.default_rng(1)
    broken = 0
    for _ in range(1500):
        found = controlled_threshold(
            *_draw(generator, 500, lambda s: 0.3 * s), error=0.08, confidence=0.9, start=0.3
        )
        broken += found.threshold > 0.08 / 0.15
    assert 0.04 < broken / 1500 < 0.125


def test_wrong_sure_predictions_end_it_without_a_start_only():
    scores, wrong = torch.linspace(0, 1, 2000).double(), torch.zeros(2000, dtype=torch.bool)
    wrong[3] = True
    wrong[1500::2] = True
    assert not controlled_threshold(scores, wrong, error=0.05).attained
    found = controlled_threshold(scores, wrong, error=0.05, start=0.5)
    assert 1500 < found.answered < 1700


def test_all_or_nothing():
    scores = torch.rand(100, generator=torch.Generator().manual_seed(0))
    right = torch.zeros(100, dtype=torch.bool)
    assert controlled_threshold(scores, right, error=0.05).threshold == math.inf
    assert not controlled_threshold(scores, ~right, error=0.05).attained
    assert not controlled_threshold(scores[:58], right[:58], error=0.05).attained  # too few for any promise
    assert controlled_threshold(scores[:59], right[:59], error=0.05).attained
    empty = torch.empty(0)
    assert not controlled_threshold(empty, empty.bool(), error=0.05).attained
    assert not cheapest_threshold(empty, empty.bool(), cost=3.0).attained
    assert sequence_start(empty, empty.bool(), error=0.05) == -math.inf
    assert not controlled_threshold(scores, right, error=0.05, start=-math.inf).attained


@pytest.mark.parametrize("cost", [0.5, 2.0, 20.0])
def test_the_cheapest_is_that_of_a_search(cost):
    generator = torch.Generator().manual_seed(2)
    scores = torch.rand(200, generator=generator).double()
    wrong = torch.rand(200, generator=generator) < scores
    found = cheapest_threshold(scores, wrong, cost=cost)
    prices = [
        cost * int(wrong[scores <= at].sum()) + int((scores > at).sum()) for at in [-1.0, *scores.tolist()]
    ]
    assert cost * found.errors + 200 - found.answered == pytest.approx(min(prices))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"error": 0.0}, "error: expected a number between 0 and 1, got 0.0"),
        ({"confidence": 1.0}, "confidence: expected"),
        ({"uncertainty": torch.tensor([0.1, math.nan])}, "expected numbers, got NaN"),
        ({"wrong": torch.tensor([True])}, r"expected the shape of uncertainty, \[2\], got \[1\]"),
    ],
)
def test_bad_input(change, words):
    given = {"uncertainty": torch.tensor([0.1, 0.2]), "wrong": torch.tensor([True, False]), "error": 0.1}
    with pytest.raises(ValueError, match=words):
        controlled_threshold(**(given | change))
    with pytest.raises(TypeError, match="wrong: expected dtype bool"):
        controlled_threshold(**(given | {"wrong": torch.tensor([0.0, 1.0])}))
    with pytest.raises(ValueError, match="cost: expected a positive number"):
        cheapest_threshold(given["uncertainty"], given["wrong"], cost=0.0)
    with pytest.raises(ValueError, match="errors: expected a number between 0 and the 3"):
        error_bound(4, 3)
