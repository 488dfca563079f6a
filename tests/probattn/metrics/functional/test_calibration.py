"""Calibration error, overconfidence error and the reliability diagram."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from probattn.metrics.functional import (
    best_temperature,
    calibration_error,
    overconfidence_error,
    reliability_diagram,
)


def predictions(seed: int, size: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, 0.6), size=size).astype(np.float32)
    labels = np.where(rng.random(size) < 0.7, probabilities.argmax(-1), rng.integers(0, classes, size))
    return probabilities, labels


def plain_bins(probabilities: np.ndarray, labels: np.ndarray, n_bins: int) -> list[tuple[int, float, float]]:
    """Count, accuracy and confidence of each bin, with loops; the edges are those of float32."""
    edges = [np.float32(m) / np.float32(n_bins) for m in range(n_bins + 1)]
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(n_bins)]
    for row, label in zip(probabilities, labels, strict=True):
        confidence = row.max()
        index = max(m for m in range(n_bins) if edges[m] <= confidence)
        bins[index].append((float(confidence), bool(row.argmax() == label)))
    return [
        (len(b), sum(right for _, right in b) / len(b), sum(c for c, _ in b) / len(b)) if b else (0, 0.0, 0.0)
        for b in bins
    ]


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("n_bins", [1, 10, 15])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_against_torchmetrics_multiclass(classes: int, n_bins: int, norm: Any) -> None:
    preds, target = (torch.tensor(x) for x in predictions(classes, 400, classes))
    assert preds.max() < 1  # torchmetrics has a bin of its own for 1
    expected = multiclass_calibration_error(preds, target, num_classes=classes, n_bins=n_bins, norm=norm)
    got = calibration_error(preds, target, n_bins=n_bins, norm=norm)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def netcal_ece() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its optional parts
        return pytest.importorskip("netcal.metrics").ECE


@pytest.mark.parametrize("saturated", [False, True])
def test_against_netcal(saturated: bool) -> None:
    probabilities, labels = predictions(7, 500, 4)
    if saturated:
        probabilities[:60] = np.eye(4, dtype=np.float32)[labels[:60]]
        probabilities[:20] = np.roll(probabilities[:20], 1, axis=-1)
    expected = netcal_ece()(bins=10).measure(probabilities, labels)
    got = calibration_error(torch.tensor(probabilities), torch.tensor(labels)).item()
    assert got == pytest.approx(expected, abs=1e-6)


def test_confidence_of_one_belongs_to_the_last_bin() -> None:
    """One wrong at confidence 1 and one right at 0.95 lie in one bin; torchmetrics cuts it in two."""
    preds, target = torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0])
    assert calibration_error(preds, target).item() == pytest.approx(0.975 - 0.5, abs=1e-6)
    theirs = multiclass_calibration_error(preds, target, num_classes=2, n_bins=10).item()
    assert theirs == pytest.approx((1.0 + 0.05) / 2, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 5])
def test_against_plain_loops(classes: int) -> None:
    probabilities, labels = predictions(classes + 20, 300, classes)
    preds, target = torch.tensor(probabilities), torch.tensor(labels)
    bins = plain_bins(probabilities, labels, 10)
    n = len(labels)
    ece = sum(count / n * abs(acc - conf) for count, acc, conf in bins)
    oe = sum(count / n * conf * max(conf - acc, 0) for count, acc, conf in bins)
    assert calibration_error(preds, target).item() == pytest.approx(ece, abs=1e-6)
    assert overconfidence_error(preds, target).item() == pytest.approx(oe, abs=1e-6)
    diagram = reliability_diagram(preds, target)
    assert diagram.counts.tolist() == [count for count, _, _ in bins]
    for column, values in ((1, diagram.accuracy), (2, diagram.confidence)):
        expected = [b[column] if b[0] else np.nan for b in bins]
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    np.testing.assert_allclose(diagram.edges, np.linspace(0, 1, 11), rtol=1e-6)


def test_binary_form_of_torchmetrics_measures_something_else() -> None:
    """Binning P(y = 1) against binning the winning class, on the same data: about 0.166 against 0.013.

    The predictor leans towards class 1 by 0.166 everywhere: P(y = 1 | x) = p - 0.166. Where it says 1 it is
    overconfident, where it says 0 underconfident, by the same amount. In bins of P(y = 1) both gaps count; in bins
    of the winning class's confidence they cancel, and what is left is the noise of 4,000 labels.
    """
    rng = np.random.default_rng(0)
    positive = rng.uniform(0.17, 0.83, size=4000)
    target = torch.tensor((rng.random(4000) < positive - 0.166).astype(np.int64))
    preds = torch.tensor(np.stack([1 - positive, positive], axis=-1), dtype=torch.float32)
    binary = binary_calibration_error(preds[:, 1].contiguous(), target, n_bins=10).item()
    multiclass = multiclass_calibration_error(preds, target, num_classes=2, n_bins=10).item()
    ours = calibration_error(preds, target).item()
    assert binary == pytest.approx(0.166, abs=0.01)
    assert ours == pytest.approx(multiclass, abs=1e-6)
    assert ours == pytest.approx(0.013, abs=0.01)


def test_draws_are_averaged() -> None:
    draws = torch.tensor(np.random.default_rng(3).dirichlet([1, 1], size=(6, 80)), dtype=torch.float32)
    target = torch.randint(0, 2, (80,), generator=torch.Generator().manual_seed(0))
    assert calibration_error(draws, target).equal(calibration_error(draws.mean(0), target))
    assert overconfidence_error(draws, target).equal(overconfidence_error(draws.mean(0), target))


def test_logits_within_the_unit_interval_are_not_taken_for_probabilities() -> None:
    """torchmetrics recognises logits by values outside [0, 1] and takes these for probabilities."""
    logits, target = torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 0])
    got = calibration_error(logits, target, inputs="logits").item()
    expected = 1 - (1 / (1 + np.exp(-0.8)) + 1 / (1 + np.exp(-0.6))) / 2
    assert got == pytest.approx(expected, abs=1e-6)
    theirs = multiclass_calibration_error(logits, target, num_classes=2, n_bins=10).item()
    assert abs(theirs - expected) > 0.1


def test_extremes() -> None:
    sure, target = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
    assert calibration_error(sure, target).item() == 0.25
    assert overconfidence_error(sure, target).item() == 0.25
    assert calibration_error(sure, torch.zeros(4, dtype=torch.long)).item() == 0
    assert overconfidence_error(sure, torch.ones(4, dtype=torch.long)).item() == 1
    even = torch.full((4, 2), 0.5)
    assert calibration_error(even, torch.tensor([0, 0, 1, 1])).item() == 0
    assert reliability_diagram(even, target).counts.tolist() == [0, 0, 0, 0, 0, 4, 0, 0, 0, 0]
    underconfident = torch.tensor([[0.6, 0.4]] * 4)
    assert overconfidence_error(underconfident, torch.zeros(4, dtype=torch.long)).item() == 0


def test_nothing_kept_is_nan() -> None:
    preds, target = torch.tensor([[0.4, 0.6]]), torch.tensor([-100])
    assert calibration_error(preds, target, ignore_index=-100).isnan()
    assert calibration_error(preds, target, ignore_index=-100, norm="l2").isnan()
    assert calibration_error(preds, target, ignore_index=-100, norm="max").isnan()
    assert overconfidence_error(preds, target, ignore_index=-100).isnan()
    diagram = reliability_diagram(preds, target, ignore_index=-100)
    assert diagram.counts.sum() == 0
    assert diagram.accuracy.isnan().all()


def test_ignored_examples_do_not_count() -> None:
    probabilities, labels = predictions(9, 100, 3)
    preds, target = torch.tensor(probabilities), torch.tensor(labels)
    marked = target.clone()
    marked[::4] = 255
    kept = marked != 255
    got = calibration_error(preds, marked, ignore_index=255)
    assert got.equal(calibration_error(preds[kept], target[kept]))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(1, 20), st.integers(0, 2**31))
def test_relations(size: int, classes: int, n_bins: int, seed: int) -> None:
    preds, target = (torch.tensor(x) for x in predictions(seed, size, classes))
    ece, rms, worst = (
        calibration_error(preds, target, n_bins=n_bins, norm=norm).item() for norm in ("l1", "l2", "max")
    )
    oe = overconfidence_error(preds, target, n_bins=n_bins).item()
    assert 0 <= oe <= ece + 1e-6
    assert ece <= rms + 1e-6
    assert rms <= worst + 1e-6 <= 1 + 2e-6


def test_exactness_over_many_examples() -> None:
    """A float32 sum of a million confidences would be off in the fourth digit of the gap."""
    preds = torch.tensor([[0.7001, 0.2999]]).expand(1_000_000, 2)
    target = (torch.arange(1_000_000) % 10 >= 7).long()
    assert calibration_error(preds, target).item() == pytest.approx(1e-4, rel=2e-3)


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True])
def test_number_of_bins_is_checked(n_bins: Any) -> None:
    with pytest.raises(ValueError, match="n_bins: expected an integer >= 1"):
        calibration_error(torch.tensor([[0.4, 0.6]]), torch.tensor([1]), n_bins=n_bins)


def test_norm_is_checked() -> None:
    with pytest.raises(ValueError, match=r"norm: expected one of.*'l3'"):
        calibration_error(torch.tensor([[0.4, 0.6]]), torch.tensor([1]), norm="l3")


def test_a_bin_of_one_example_has_the_confidence_of_that_example() -> None:
    """One example in each of three bins: two are wrong, of one the confidence is too low."""
    preds = torch.tensor([[0.9, 0.1], [0.25, 0.75], [0.6, 0.4]])
    target = torch.tensor([1, 0, 0])
    expected = pytest.approx((0.9 * 0.9 + 0.75 * 0.75) / 3, rel=1e-6)
    assert overconfidence_error(preds, target).item() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("classes", [2, 7])
def test_the_best_temperature_is_scipys(classes: int, scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(300, classes, generator=generator, dtype=torch.float64)
    labels = torch.distributions.Categorical(
        logits=logits
    ).sample()  # so that the best temperature is near the scale
    given = (scale * logits).to(dtype)

    def loss(log: float) -> float:
        return torch.nn.functional.cross_entropy(given.double() / math.exp(log), labels).item()

    found = optimize.minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
    assert best_temperature(given, labels).item() == pytest.approx(math.exp(found.x), rel=1e-5)


def test_temperatures_without_a_best_one_are_at_the_end_of_the_range() -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    assert best_temperature(logits, torch.tensor([0, 1])).log().item() == pytest.approx(-7)
    assert best_temperature(logits, torch.tensor([1, 0])).log().item() == pytest.approx(7)


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), r"N >= 1, got \[0, 2\]"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), r"got \[3, 2\] and \[2\]"),
        (torch.full((1, 2), torch.nan), torch.zeros(1, dtype=torch.long), "expected finite logits"),
    ],
)
def test_temperatures_of_wrong_logits_are_refused(logits, target, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best_temperature(logits, target)
