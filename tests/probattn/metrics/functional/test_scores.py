"""Log-likelihood, Brier score and Matthews correlation against scikit-learn and cases worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.metrics import brier_score_loss, log_loss

from probattn.metrics.functional import brier_score, matthews_correlation, negative_log_likelihood

RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(5, 200, 4)) * 2
DRAWS = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LABELS = RNG.integers(0, 4, size=200)
TARGET = torch.tensor(LABELS)


def test_likelihood_against_sklearn() -> None:
    expected = log_loss(LABELS, DRAWS.mean(0), labels=range(4))
    values = pytest.approx(expected, rel=1e-10)
    assert negative_log_likelihood(torch.tensor(DRAWS), TARGET).mean().item() == values
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


CLASSES = st.integers(1, 5).flatmap(
    lambda size: st.lists(
        st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), min_size=1, max_size=40
    )
)


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@given(CLASSES)
def test_it_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, target = map(torch.tensor, zip(*pairs, strict=True))
    expected = metrics.matthews_corrcoef(target.numpy(), predicted.numpy())
    assert matthews_correlation(predicted, target).item() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_of_two_classes_it_is_pearsons_correlation(pairs: list[tuple[bool, bool]]) -> None:
    predicted, target = np.array(pairs, dtype=int).T
    expected = 0.0 if predicted.std() == 0 or target.std() == 0 else np.corrcoef(predicted, target)[0, 1]
    found = matthews_correlation(torch.from_numpy(predicted), torch.from_numpy(target)).item()
    assert found == pytest.approx(expected, abs=1e-12)


def test_one_class_throughout_is_no_correlation() -> None:
    target = (torch.arange(527) < 365).long()
    for predicted in (torch.ones_like(target), torch.zeros_like(target)):
        assert matthews_correlation(predicted, target).item() == 0
        assert matthews_correlation(target, predicted).item() == 0
    assert matthews_correlation(target, target).item() == 1
    assert matthews_correlation(1 - target, target).item() == -1


def test_large_counts_lose_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (200_000,), generator=generator)
    predicted = torch.where(torch.rand(200_000, generator=generator) < 0.01, 1 - target, target)
    expected = metrics.matthews_corrcoef(target.numpy(), predicted.numpy())
    assert matthews_correlation(predicted, target).item() == pytest.approx(expected, rel=1e-12)


def test_no_example_has_no_correlation() -> None:
    empty = torch.zeros(0, dtype=torch.long)
    assert matthews_correlation(empty, empty).isnan()


@pytest.mark.parametrize(
    ("predicted", "target", "error", "message"),
    [
        (
            torch.zeros(3),
            torch.zeros(3).long(),
            TypeError,
            "expected predicted as integers, got torch.float32",
        ),
        (
            torch.zeros(3).long(),
            torch.zeros(2).long(),
            ValueError,
            r"of one shape \[N\], got \[3\] and \[2\]",
        ),
        (torch.zeros(2, 2).long(), torch.zeros(2, 2).long(), ValueError, r"of one shape \[N\]"),
        (torch.tensor([-1, 0]), torch.tensor([0, 0]), ValueError, "expected classes >= 0"),
    ],
)
def test_what_are_no_classes_is_named(predicted, target, error, message) -> None:
    with pytest.raises(error, match=message):
        matthews_correlation(predicted, target)
