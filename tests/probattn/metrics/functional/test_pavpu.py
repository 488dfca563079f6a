import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from probattn.metrics.functional import certainty_counts, pavpu
from probattn.metrics.functional.pavpu import pavpu_from_counts

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
    assert (
        certainty_counts(sure, target, thresholds=[0.0])[0, :, 1].sum() == 0
    )  # below, not at, the threshold
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
