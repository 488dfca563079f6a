"""Differences to the deterministic baseline with intervals of a paired bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probattn.report.claims import bootstrap_p, corrected
from probattn.report.record import MODELS, Difference, ModelKey

Columns = Mapping[str, Tensor]
"""What measures are computed from: tensors with one row an example, ``[N, ...]``."""
Figures = Callable[[Columns], Mapping[str, float | None]]
"""Measures of some examples by name."""
Rows = Mapping[str, Tensor]
"""Drawn examples by data set; without an entry all are meant."""
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
    """Percentile intervals of differences to the deterministic baseline (Efron 1979).

    A resample draws as many examples as each data set has, with replacement, and measures every model on the same ones;
    data sets are drawn independently. The p values come from the same resamples (:func:`bootstrap_p`), corrected by
    Holm's method over all comparisons of a model. Examples that depend on each other, as questions about one image do,
    are drawn together: as many clusters as there are, each with all its examples (Davison and Hinkley 1997, section
    3.8).

    Args:
        keys: data sets and models that were measured.
        figures: measures of a model on drawn examples of a data set, or on all of them.
        sizes: number of examples by data set.
        clusters: the cluster of each example, by data set; where one is left out its examples are independent.
        resamples: how often examples are drawn.
        level: of the intervals.
        seed: of the draws.

    Returns:
        The differences, data set by data set; a measure that is None in every resample is left out.
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
    for (data, model, measure), values in resampled.items():
        if not values:
            continue
        low, high = np.quantile(values, tails).tolist()
        p = bootstrap_p(values)
        records.append(
            Difference(
                measure=measure,
                model=model,
                data=data,
                value=points[data, model, measure],
                low=low,
                high=high,
                level=level,
                p=p,
                corrected=p,
                resamples=resamples,
            )
        )
    return corrected(records)


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
    """The same of measures that are functions of columns.

    Args:
        table: columns by data set and model.
        figures: measures of columns.
        **options: of :func:`paired_bootstrap`.
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
    rows: dict[Hashable, list[int]] = {}
    for row, cluster in enumerate(clusters):
        rows.setdefault(cluster, []).append(row)
    return [torch.tensor(row) for row in rows.values()]


def _drawn(size: int, members: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Drawn examples: as many as there are, or those of as many clusters as there are."""
    number = len(members) or size
    rows = torch.randint(number, (number,), generator=generator)
    return torch.cat([members[cluster] for cluster in rows.tolist()]) if members else rows
