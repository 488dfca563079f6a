"""Matthews correlation against scikit-learn, numpy and the cases in which it is not defined."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from probattn.metrics.functional import matthews_correlation

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
def test_what_are_no_classes_is_named(
    predicted: torch.Tensor, target: torch.Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        matthews_correlation(predicted, target)
