"""Differences to the deterministic baseline: paired bootstrap, p values, and when one counts as significant."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy
import torch
from torch import Tensor

from probattn.checks import grouped
from probattn.metrics.functional import holm, mean_interval
from probattn.report.record import MODELS, Comparison, Difference, ModelKey

LEAST_EFFECT = 0.005
"""Smallest difference that counts as significant: 0.005 for shares and other numbers, 0.5 for BLEU (0 to 100). Smaller
differences can vanish if values are rounded to whole per cent."""

LEAST_EXAMPLES = 200
"""Smallest number of examples for a significant difference: 20 for each of ten bins of the calibration error; the
standard error of an accuracy of 90% is then 2 percentage points."""

LEAST_SEEDS = 3
"""Smallest number of seeds for a significant difference; two may have equal values by rounding alone."""

ROUNDING = 1e-12
"""Relative spread of figures that differ by rounding alone."""

Compared = TypeVar("Compared", bound=Comparison)


def bootstrap_p(resampled: Sequence[float]) -> float:
    r"""Two-sided p-value of the hypothesis that a difference is 0, from bootstrap resamples.

    .. math:: p = \min\left(1, 2\, \frac{1 + \min(\#\{d \le 0\}, \#\{d \ge 0\})}{R + 1}\right)

    It is one minus the level at which the percentile interval touches 0, with the observed sample counted among the
    resamples (Davison and Hinkley 1997, chapter 4); it is therefore at least 2 / (R + 1).

    Args:
        resampled: differences d in R >= 1 resamples.

    Example:
        >>> bootstrap_p([0.1, 0.2, 0.3]), bootstrap_p([0.0, 0.0])
        (0.5, 1.0)
    """
    below, above = sum(value <= 0 for value in resampled), sum(value >= 0 for value in resampled)
    return min(1.0, 2 * (1 + min(below, above)) / (len(resampled) + 1))


def seeds_p(values: Sequence[float]) -> float:
    """Two-sided p-value of the hypothesis that the mean difference is 0: the paired t-test over seeds.

    Args:
        values: a difference for each of n >= 2 seeds.

    Returns:
        The p-value; 1 if the differences vary only by rounding errors, because their variance is then unknown.

    Example:
        >>> round(seeds_p([0.5, 1.5]), 4), seeds_p([0.1 + 0.2, 0.3])
        (0.2952, 1.0)
    """
    if max(values) - min(values) <= ROUNDING * max(map(abs, values)):
        return 1.0
    return float(scipy.stats.ttest_1samp(values, 0.0).pvalue)


def over_seeds(item: Compared, values: Sequence[float]) -> Compared:
    """The comparison over several seeds: mean, Student's t interval and p-value, not corrected yet."""
    mean, low, high, _ = mean_interval(values, level=item.level)
    p, seeds = seeds_p(values), tuple(values)
    return _changed(item, value=mean, low=low, high=high, p=p, corrected=p, resamples=None, seeds=seeds)


def corrected(items: Sequence[Compared]) -> tuple[Compared, ...]:
    """Comparisons with p-values corrected by Holm's method; all comparisons of one model are one family.

    Args:
        items: all comparisons of an evaluation, over all measures and data sets.
    """
    families = grouped((item.model, index) for index, item in enumerate(items))
    sorted_items = list(items)
    for indices in families.values():
        for index, value in zip(indices, holm([items[index].p for index in indices]), strict=True):
            sorted_items[index] = _changed(items[index], corrected=value)
    return tuple(sorted_items)


def is_reliable(item: Comparison, examples: int) -> bool:
    """Whether a difference counts as significant.

    Args:
        item: the comparison.
        examples: number of examples; in out-of-distribution detection that of the smaller data set.

    Returns:
        True if the corrected p-value is below 1 - level, the absolute difference is at least :data:`LEAST_EFFECT`,
        and there are at least :data:`LEAST_EXAMPLES` examples and, in a comparison over seeds,
        :data:`LEAST_SEEDS` seeds.
    """
    return (
        item.corrected < round(1 - item.level, 12)
        and abs(item.value) >= LEAST_EFFECT
        and examples >= LEAST_EXAMPLES
        and (not item.seeds or len(item.seeds) >= LEAST_SEEDS)
    )


def least_resamples(comparisons: int, level: float) -> int:
    """Number of resamples above which the least of several p-values can be below 1 - level after Holm's correction."""
    return int(2 * comparisons / (1 - level) * (1 + 1e-9))


def _changed(item: Compared, **fields: Any) -> Compared:
    return type(item)(**{**dict(item), **fields})


Columns = Mapping[str, Tensor]
"""Tensors by name from which measures are computed, with one row per example, ``[N, ...]``."""
Figures = Callable[[Columns], Mapping[str, float | None]]
"""Measures of some examples by name."""
Rows = Mapping[str, Tensor]
"""Indices of the drawn examples by data set; a data set without an entry is used whole."""
FiguresOf = Callable[[str, ModelKey, Rows], Mapping[str, float | None]]
"""Measures of a model on drawn examples of a data set."""
Key = tuple[str, ModelKey, str]
"""Data set, model and measure."""


def paired_bootstrap(
    keys: Sequence[tuple[str, ModelKey]],
    figures: FiguresOf,
    sizes: Mapping[str, int],
    *,
    clusters: Mapping[str, Sequence[Hashable]] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Difference, ...]:
    """Differences to the deterministic baseline with percentile intervals of a paired bootstrap (Efron 1979).

    A resample draws, with replacement, as many examples as each data set has, and measures every model on the same
    examples; data sets are drawn independently. The p-values come from the same resamples (:func:`bootstrap_p`),
    corrected by Holm's method over all comparisons of a model. If examples depend on each other, such as questions
    about one image, clusters are drawn instead, each with all its examples (Davison and Hinkley 1997, section 3.8).

    Args:
        keys: pairs of data set and model that were measured.
        figures: function of a data set, a model and the indices of the drawn examples by data set (a data set without
            an entry is used whole) that returns measures by name.
        sizes: number of examples by data set.
        clusters: the cluster of each example, by data set; the examples of a data set without an entry are independent.
        resamples: number of resamples.
        level: level of the intervals.
        seed: seed of the resampling.

    Returns:
        The differences by data set; a measure that is None in every resample is left out.
    """
    points = _gaps(keys, figures, {})
    members = {data: _members((clusters or {}).get(data, ())) for data in sizes}
    resampled: dict[Key, list[float]] = {key: [] for key in points}
    generator = torch.Generator().manual_seed(seed)
    for _ in range(resamples if points else 0):
        rows = {data: _drawn(size, members[data], generator) for data, size in sizes.items()}
        for key, value in _gaps(keys, figures, rows).items():
            if key in resampled:
                resampled[key].append(value)
    tails = [(1 - level) / 2, (1 + level) / 2]
    records = []
    for key, values in resampled.items():
        if values:
            low, high = np.quantile(values, tails).tolist()
            p = bootstrap_p(values)
            fields: dict[str, Any] = dict(zip(("data", "model", "measure"), key, strict=True))
            fields |= {"value": points[key], "low": low, "high": high, "p": p, "corrected": p}
            records.append(Difference(**fields, level=level, resamples=resamples))
    return corrected(records)


@torch.inference_mode()  # a quarter of the time
def _gaps(keys: Sequence[tuple[str, ModelKey]], figures: FiguresOf, rows: Rows) -> dict[Key, float]:
    """Differences to the baseline, by data set, model and measure."""
    points: dict[Key, float] = {}
    for data in dict.fromkeys(data for data, _ in keys):
        models = [model for model in MODELS if (data, model) in keys]
        if models[:1] != ["deterministic"] or len(models) == 1:
            continue
        base = figures(data, "deterministic", rows)
        for model in models[1:]:
            for measure, value in figures(data, model, rows).items():
                reference = base.get(measure)
                if value is not None and reference is not None:
                    points[data, model, measure] = value - reference
    return points


def compare(
    table: Mapping[tuple[str, ModelKey], Columns], figures: Figures, **options: Any
) -> tuple[Difference, ...]:
    """:func:`paired_bootstrap` of measures that are functions of columns, tensors ``[N, ...]`` by name.

    Args:
        table: columns by data set and model.
        figures: function of columns that returns measures by name.
        **options: options of :func:`paired_bootstrap`.
    """

    def of_rows(data: str, model: ModelKey, rows: Rows) -> Mapping[str, float | None]:
        return figures(selected(table[data, model], rows.get(data)))

    sizes = {data: len(next(iter(columns.values()))) for (data, _), columns in table.items()}
    return paired_bootstrap(list(table), of_rows, sizes, **options)


def selected(columns: Columns, rows: Tensor | None) -> Columns:
    """Some rows of columns, or all of them."""
    return columns if rows is None else {name: column[rows] for name, column in columns.items()}


def _members(clusters: Iterable[Hashable]) -> list[Tensor]:
    """The rows of each cluster."""
    rows = grouped((cluster, row) for row, cluster in enumerate(clusters))
    return [torch.tensor(row) for row in rows.values()]


def _drawn(size: int, members: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Drawn examples: as many as there are, or those of as many clusters as there are."""
    number = len(members) or size
    rows = torch.randint(number, (number,), generator=generator)
    return torch.cat([members[cluster] for cluster in rows.tolist()]) if members else rows
