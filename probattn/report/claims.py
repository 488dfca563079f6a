"""When a difference counts as reliable: multiple comparisons, effect size, number of examples and of seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import scipy

from probattn.metrics.functional import holm, mean_interval
from probattn.report.record import Comparison

LEAST_EFFECT = 0.005
"""Smallest difference that counts as reliable, as a share of a measure's unit: half a point of a share or of BLEU,
0.005 of a number. Below it both networks have the same value in whole per cent."""

LEAST_EXAMPLES = 200
"""Smallest size of the data for a reliable difference: 20 examples for each of the ten bins of a calibration error,
and a standard error of 2 points for an accuracy of 90%."""

LEAST_SEEDS = 3
"""Smallest number of seeds for a reliable difference: two may agree because a measure is rounded."""

ROUNDING = 1e-12
"""Relative spread of figures that differ by rounding alone."""

Compared = TypeVar("Compared", bound=Comparison)


def bootstrap_p(resampled: Sequence[float]) -> float:
    r"""Two-sided p value that a difference is 0, from the resamples behind its percentile interval.

    .. math:: p = \min\left(1, 2\, \frac{1 + \min(\#\{d \le 0\}, \#\{d \ge 0\})}{R + 1}\right)

    It is one minus the level at which the percentile interval touches 0, with the observed sample counted among the
    resamples (Davison and Hinkley 1997, chapter 4), so that it is at least 2 / (R + 1) and never 0.

    Args:
        resampled: differences d of R >= 1 resamples.

    Example:
        >>> bootstrap_p([0.1, 0.2, 0.3]), bootstrap_p([0.0, 0.0])
        (0.5, 1.0)
    """
    below, above = sum(value <= 0 for value in resampled), sum(value >= 0 for value in resampled)
    return min(1.0, 2 * (1 + min(below, above)) / (len(resampled) + 1))


def seeds_p(values: Sequence[float]) -> float:
    """Two-sided p value that the mean over seeds is 0, by Student's t: that of the paired test for paired differences.

    Args:
        values: a difference for each of n >= 2 seeds.

    Returns:
        The value; 1 where the differences vary by rounding at most, which does not bound their variance.

    Example:
        >>> round(seeds_p([0.5, 1.5]), 4), seeds_p([0.1 + 0.2, 0.3])
        (0.2952, 1.0)
    """
    if max(values) - min(values) <= ROUNDING * max(map(abs, values)):
        return 1.0
    return float(scipy.stats.ttest_1samp(values, 0.0).pvalue)


def over_seeds(item: Compared, values: Sequence[float], level: float) -> Compared:
    """A comparison of one run turned into that of several: mean, Student's t interval, p; not corrected yet."""
    interval = mean_interval(values, level=level)
    assert interval.low is not None
    assert interval.high is not None
    p = seeds_p(values)
    return _changed(
        item,
        value=interval.mean,
        low=interval.low,
        high=interval.high,
        level=level,
        p=p,
        corrected=p,
        resamples=None,
        seeds=tuple(values),
    )


def corrected(items: Sequence[Compared]) -> tuple[Compared, ...]:
    """Comparisons with their p values corrected by Holm's method, each model's together: they are one family.

    Args:
        items: all comparisons of an evaluation, of whatever measures and data sets.
    """
    families: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        families.setdefault(item.model, []).append(index)
    sorted_items = list(items)
    for indices in families.values():
        for index, value in zip(indices, holm([items[index].p for index in indices]), strict=True):
            sorted_items[index] = _changed(items[index], corrected=value)
    return tuple(sorted_items)


def is_reliable(item: Comparison, examples: int, *, unit: float = 1.0) -> bool:
    """Whether a difference counts as reliable.

    Args:
        item: the comparison.
        examples: size of the data; of the smaller set in OOD detection.
        unit: of the measure; 100 for BLEU.

    Returns:
        Whether its corrected p value is below 1 - level, it is at least :data:`LEAST_EFFECT` units large, and there are
        :data:`LEAST_EXAMPLES` examples and, where it is one over seeds, :data:`LEAST_SEEDS` of them.
    """
    return (
        item.corrected < round(1 - item.level, 12)
        and abs(item.value) >= LEAST_EFFECT * unit
        and examples >= LEAST_EXAMPLES
        and (not item.seeds or len(item.seeds) >= LEAST_SEEDS)
    )


def least_resamples(comparisons: int, level: float) -> int:
    """Resamples from which on the smallest of some p values can fall below 1 - level after Holm's correction."""
    return int(2 * comparisons / (1 - level) * (1 + 1e-9))


def _changed(item: Compared, **fields: Any) -> Compared:
    return type(item)(**{**dict(item), **fields})
