"""Intervals of numbers against their definitions and their guarantee."""

import numpy as np
import pytest
import torch
from scipy import stats

from probattn.metrics.functional import interval_coverage, interval_score, interval_stretch


def test_the_score_is_smallest_at_the_true_quantiles():
    """Gneiting and Raftery 2007: in expectation, here of 200,000 normal numbers."""
    numbers = torch.from_numpy(np.random.default_rng(0).standard_normal(200_000))
    ends = torch.tensor(stats.norm.ppf([0.1, 0.9]))
    best = interval_score(ends[:, None].expand(2, len(numbers)), numbers, 0.8).mean()
    for change in ((0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.1, -0.1)):
        other = (ends + torch.tensor(change))[:, None].expand(2, len(numbers))
        assert interval_score(other, numbers, 0.8).mean() > best
    assert abs(interval_coverage(ends[:, None].expand(2, len(numbers)), numbers) - 0.8) < 3e-3


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_stretched_intervals_cover_new_data(level):
    """Over 3,000 repetitions with 60 held-out numbers: level at least, and at most 1 / 61 more (Lei et al. 2018)."""
    random = np.random.default_rng(1)
    scale = random.uniform(0.5, 2.0, (3000, 61))
    numbers = torch.from_numpy(random.standard_t(4, (3000, 61)) * scale)
    half = torch.from_numpy(scale)
    hits = []
    for values, width in zip(numbers, half, strict=True):
        factor = interval_stretch(torch.stack([-width[:60], width[:60]]), values[:60], level)
        hits.append(float(values[60].abs() <= factor * width[60]))
    error = 3 * np.sqrt(level * (1 - level) / 3000)
    assert level - error < np.mean(hits) < level + 1 / 61 + error


def test_what_cannot_be_promised_is_infinite_and_what_does_not_fit_is_refused():
    ends, numbers = torch.tensor([[-1.0] * 3, [1.0] * 3]), torch.zeros(3)
    assert interval_stretch(ends, numbers, 0.95).isinf()
    assert interval_stretch(ends[..., None], numbers, 0.5) == 0
    assert interval_coverage(ends[:, :0], numbers[:0]).isnan()
    message = r"expected an interval \[2, N, ...\] and N numbers, got \[2, 3\] and \[2\]"
    with pytest.raises(ValueError, match=message):
        interval_coverage(ends, numbers[:2])
    with pytest.raises(ValueError, match="expected intervals of positive width"):
        interval_stretch(0 * ends, numbers, 0.5)
    with pytest.raises(ValueError, match=r"interval_score.level: expected a number in \(0, 1\), got 1.0"):
        interval_score(ends, numbers, 1.0)
