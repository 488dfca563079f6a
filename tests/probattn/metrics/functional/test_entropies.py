"""Predictive and expected entropy, mutual information, least confidence and their choice by name."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probattn.metrics.functional import (
    entropy,
    expected_entropy,
    least_confidence,
    mutual_information,
    predictive_entropy,
    uncertainty,
)

DRAWS = np.random.default_rng(0).dirichlet([0.5, 1.0, 2.0], size=(8, 50))


def test_against_scipy() -> None:
    preds = torch.tensor(DRAWS)
    total = scipy.stats.entropy(DRAWS.mean(0), axis=-1)
    expected = scipy.stats.entropy(DRAWS, axis=-1).mean(0)
    np.testing.assert_allclose(predictive_entropy(preds), total, rtol=1e-12)
    np.testing.assert_allclose(expected_entropy(preds), expected, rtol=1e-12)
    np.testing.assert_allclose(mutual_information(preds), total - expected, rtol=1e-9)
    np.testing.assert_allclose(least_confidence(preds), 1 - DRAWS.mean(0).max(-1), rtol=1e-9)


def test_mutual_information_against_plain_definition_in_the_joint() -> None:
    """The definition sum over draw and label of p(s, y) log p(s, y) / p(s) p(y), with loops."""
    num_draws, num_examples, num_classes = DRAWS.shape
    for n in range(0, num_examples, 10):
        value = 0.0
        for c in range(num_classes):
            marginal = sum(DRAWS[p, n, c] for p in range(num_draws)) / num_draws
            for p in range(num_draws):
                joint = DRAWS[p, n, c] / num_draws
                value += joint * math.log(joint / (marginal / num_draws))
        got = mutual_information(torch.tensor(DRAWS[:, n : n + 1])).item()
        assert got == pytest.approx(value, rel=1e-10)


def test_nearly_equal_draws_keep_their_digits() -> None:
    """Two draws (1/2 + d, 1/2 - d) and its mirror have mutual information 2 d^2 + O(d^4)."""
    for d in (1e-2, 1e-3):
        preds = torch.tensor([[[0.5 + d, 0.5 - d]], [[0.5 - d, 0.5 + d]]])
        exact = math.log(2) + (0.5 + d) * math.log(0.5 + d) + (0.5 - d) * math.log(0.5 - d)
        assert mutual_information(preds).item() == pytest.approx(exact, rel=2e-3)
        difference = (predictive_entropy(preds) - expected_entropy(preds)).item()
        assert abs(mutual_information(preds).item() - exact) <= abs(difference - exact) + 1e-12


def test_extremes() -> None:
    certain, even = torch.tensor([[1.0, 0.0, 0.0]]), torch.full((1, 3), 1 / 3)
    opposed = torch.eye(3).unsqueeze(1)  # three draws, each certain of another class
    assert predictive_entropy(certain).item() == expected_entropy(certain).item() == 0
    assert least_confidence(certain).item() == 0
    assert predictive_entropy(even).item() == pytest.approx(math.log(3), rel=1e-6)
    assert least_confidence(even).item() == pytest.approx(2 / 3, rel=1e-6)
    assert mutual_information(opposed).item() == pytest.approx(math.log(3), rel=1e-6)
    assert expected_entropy(opposed).item() == 0


def test_single_draw_has_no_mutual_information() -> None:
    one = torch.tensor(DRAWS[:1])
    assert mutual_information(one).eq(0).all()
    torch.testing.assert_close(predictive_entropy(one), expected_entropy(one))
    torch.testing.assert_close(predictive_entropy(one), predictive_entropy(one[0]))


def test_identical_draws_have_no_mutual_information() -> None:
    preds = torch.tensor(DRAWS[:1], dtype=torch.float32).expand(7, -1, -1)
    assert mutual_information(preds).max() < 1e-12


def test_ranking_survives_saturated_confidence() -> None:
    logits = torch.tensor([[0.0, 20.0], [0.0, 25.0]])
    assert logits.softmax(-1).max(-1).values.tolist() == [1.0, 1.0]
    scores = least_confidence(logits, inputs="logits")
    assert scores[0] > scores[1] > 0


def test_empty() -> None:
    empty = torch.zeros(4, 0, 3)
    for measure in (predictive_entropy, expected_entropy, mutual_information, least_confidence):
        assert measure(empty).shape == (0,)


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(2, 6)),
        elements=st.floats(-80, 80, width=32),
    )
)
def test_bounds_and_decomposition(logits: np.ndarray) -> None:
    preds = torch.tensor(logits)
    num_draws, _, num_classes = preds.shape
    total = predictive_entropy(preds, inputs="logits")
    expected = expected_entropy(preds, inputs="logits")
    mutual = mutual_information(preds, inputs="logits")
    assert bool((total >= 0).all()) and bool((total <= np.float32(math.log(num_classes))).all())
    assert bool((expected >= 0).all())
    assert bool((mutual >= 0).all())
    assert bool((mutual <= math.log(min(num_draws, num_classes)) + 1e-5).all())
    torch.testing.assert_close(total, expected + mutual, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("predictive_entropy", predictive_entropy),
        ("expected_entropy", expected_entropy),
        ("mutual_information", mutual_information),
        ("least_confidence", least_confidence),
    ],
)
def test_choice_by_name(kind: str, function: object) -> None:
    preds = torch.tensor(DRAWS)
    assert callable(function)
    assert uncertainty(preds, kind).equal(function(preds))


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"uncertainty: expected one of.*'variance'"):
        uncertainty(torch.tensor(DRAWS), "variance")


def test_mutual_information_needs_draws() -> None:
    with pytest.raises(ValueError, match="mutual_information: expected draws"):
        mutual_information(torch.tensor(DRAWS[0]))


def test_entropy_of_any_batch_shape() -> None:
    np.testing.assert_allclose(entropy(torch.tensor(DRAWS)), scipy.stats.entropy(DRAWS, axis=-1), rtol=1e-12)


def test_draws_near_zero_beside_a_large_mean_count_in_full() -> None:
    logits = np.array([[[19.0, 0.0]], [[0.0, 0.0]]])
    draws = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    exact = scipy.stats.entropy(draws.mean(0), axis=-1) - scipy.stats.entropy(draws, axis=-1).mean(0)
    got = mutual_information(torch.tensor(logits, dtype=torch.float32), inputs="logits")
    assert got.item() == pytest.approx(exact.item(), rel=1e-5)
