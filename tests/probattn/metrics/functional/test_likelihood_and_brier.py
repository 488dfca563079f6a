"""Negative log-likelihood and Brier score of the posterior predictive."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from probattn.metrics.functional import brier_score, negative_log_likelihood

RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(5, 200, 4)) * 2
DRAWS = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LABELS = RNG.integers(0, 4, size=200)
TARGET = torch.tensor(LABELS)


def test_likelihood_against_sklearn() -> None:
    expected = log_loss(LABELS, DRAWS.mean(0), labels=range(4))
    assert negative_log_likelihood(torch.tensor(DRAWS), TARGET).mean().item() == pytest.approx(
        expected, rel=1e-10
    )
    got = negative_log_likelihood(torch.tensor(LOGITS), TARGET, inputs="logits").mean().item()
    assert got == pytest.approx(expected, rel=1e-10)


def test_brier_against_sklearn() -> None:
    one_hot = np.eye(4)[LABELS]
    expected = brier_score_loss(one_hot, DRAWS.mean(0), scale_by_half=False)
    assert brier_score(torch.tensor(DRAWS), TARGET).mean().item() == pytest.approx(expected, rel=1e-10)


def test_brier_of_two_classes_is_twice_the_one_sided_form() -> None:
    positive = RNG.random(100)
    labels = RNG.integers(0, 2, size=100)
    preds = torch.tensor(np.stack([1 - positive, positive], axis=-1))
    one_sided = brier_score_loss(labels, positive)
    assert brier_score(preds, torch.tensor(labels)).mean().item() == pytest.approx(2 * one_sided, rel=1e-10)


def test_single_prediction_equals_cross_entropy() -> None:
    logits = torch.tensor(LOGITS[0])
    expected = torch.nn.functional.cross_entropy(logits, TARGET, reduction="none")
    torch.testing.assert_close(negative_log_likelihood(logits, TARGET, inputs="logits"), expected)


def test_mean_over_draws_is_no_worse_than_the_draws() -> None:
    together = negative_log_likelihood(torch.tensor(DRAWS), TARGET)
    apart = torch.stack([negative_log_likelihood(torch.tensor(draw), TARGET) for draw in DRAWS]).mean(0)
    assert bool((together <= apart + 1e-12).all())
    assert bool((together < apart - 1e-3).any())


def test_extremes() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    target = torch.tensor([0, 1])
    assert negative_log_likelihood(sure, target).tolist() == [0.0, math.inf]
    assert brier_score(sure, target).tolist() == [0.0, 2.0]
    logits = torch.tensor([[200.0, 0.0]])
    assert negative_log_likelihood(logits, torch.tensor([1]), inputs="logits").item() == pytest.approx(200)


def test_empty() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert negative_log_likelihood(torch.zeros(3, 0, 2), none).shape == (0,)
    assert brier_score(torch.zeros(0, 2), none).shape == (0,)


@pytest.mark.parametrize("measure", [negative_log_likelihood, brier_score])
def test_small_integer_labels_are_accepted(measure: object) -> None:
    assert callable(measure)
    expected = measure(torch.tensor(DRAWS), TARGET)
    assert measure(torch.tensor(DRAWS), TARGET.to(torch.uint8)).equal(expected)


@pytest.mark.parametrize("measure", [negative_log_likelihood, brier_score])
def test_labels_that_are_none_are_refused(measure) -> None:
    preds = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    with pytest.raises(ValueError, match="2"):
        measure(preds, torch.tensor([0, 2]))
    with pytest.raises(TypeError, match="integer"):
        measure(preds, torch.tensor([0.0, 1.0]))
