"""The mean of a few values with its interval, as of one measure over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from scipy.special import stdtrit


class MeanInterval(NamedTuple):
    """A mean over seeds; without bounds where there is one."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def mean_interval(values: Iterable[float], *, level: float = 0.95) -> MeanInterval:
    r"""Mean and interval of Student's t.

    .. math:: \bar x \pm t_{n - 1, (1 + level) / 2}\, \frac{s}{\sqrt n}

    (Student 1908). For two methods run with the same seeds take the differences as values: the interval is then that of
    the paired test.

    Args:
        values: x, one for each of n >= 1 seeds.
        level: coverage, in (0, 1).

    Returns:
        The mean, its bounds and n.

    Raises:
        ValueError: no value, or a level outside (0, 1).

    Example:
        >>> round(mean_interval([0.5, 1.5]).high, 3)
        7.353
        >>> mean_interval([0.5])
        MeanInterval(mean=0.5, low=None, high=None, seeds=1)
    """
    found = list(values)
    if not found or not 0 < level < 1:
        raise ValueError(
            f"mean_interval: expected values and a level in (0, 1), got {len(found)} values and {level}"
        )
    mean = statistics.fmean(found)
    if len(found) < 2:
        return MeanInterval(mean, None, None, 1)
    quantile = float(stdtrit(len(found) - 1, (1 + level) / 2))
    half = quantile * statistics.stdev(found) / len(found) ** 0.5
    return MeanInterval(mean, mean - half, mean + half, len(found))
