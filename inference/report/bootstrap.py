"""Intervals of differences between models on the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from probattn.inference.report.claims import bootstrap_p, corrected
from probattn.inference.report.columns import Columns
from probattn.inference.report.measurements import Difference
from probattn.inference.report.record import MEASURES, MODELS, Measure, ModelKey
from probattn.inference.report.results import DataSet

Table = Mapping[tuple[str, ModelKey], Columns]
Key = tuple[str, ModelKey, Measure]


def paired_intervals(
    data: Sequence[DataSet], table: Table, home: str, *, resamples: int, level: float, seed: int
) -> tuple[Difference, ...]:
    """Differences to the deterministic baseline with percentile intervals of a paired bootstrap (Efron 1979).

    A resample draws as many examples as each data set has, with replacement, and measures every model on the same
    ones; for detection, in-domain and foreign examples are drawn anew. Calibration errors are biased upwards on a
    resample, more so where they are small: percentile intervals then err towards no difference. Each interval is of its
    comparison alone; its p value comes from the same resamples (:func:`~.claims.bootstrap_p`) and is corrected by
    Holm's method over all comparisons of its model, whatever the measure and the data set. The chance that covers is
    that of the examples, given the two networks that one seed gave.

    Args:
        data: the data sets.
        table: columns by data set and model.
        home: key of the in-domain set that foreign inputs are told from.
        resamples: R.
        level: of the intervals.
        seed: of the resampling.

    Returns:
        One difference per measure, Bayesian model and data set where both models have it.

    Raises:
        ValueError: ``resamples`` below 1, or ``level`` outside (0, 1).
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"evaluate: expected resamples >= 1 and 0 < level < 1, got {resamples} and {level}")
    values = _differences(data, table, home, None)
    generator = torch.Generator().manual_seed(seed)
    found: dict[Key, list[float]] = {key: [] for key in values}
    for _ in range(resamples if values else 0):
        rows = {item.key: torch.randint(item.size, (item.size,), generator=generator) for item in data}
        for key, difference in _differences(data, table, home, rows).items():
            if key in found:
                found[key].append(difference)
    tails = [(1 - level) / 2, (1 + level) / 2]
    records = []
    for (name, model, measure), value in values.items():
        resampled = found[name, model, measure]
        low, high = np.quantile(resampled, tails).tolist()
        p = bootstrap_p(resampled)
        records.append(
            Difference(
                measure=measure,
                model=model,
                data=name,
                value=value,
                low=low,
                high=high,
                level=level,
                p=p,
                corrected=p,
                resamples=resamples,
            )
        )
    return corrected(records)


def _differences(
    data: Sequence[DataSet], table: Table, home: str, rows: Mapping[str, Tensor] | None
) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for item in data:
        measured = {
            model: _measures(item, table[item.key, model], table.get((home, model)), home, rows)
            for model in MODELS
            if (item.key, model) in table
        }
        base = measured.pop("deterministic", {})
        for model, own in measured.items():
            for measure in MEASURES:
                ours, theirs = own.get(measure), base.get(measure)
                if ours is not None and theirs is not None:
                    found[item.key, model, measure] = ours - theirs
    return found


def _measures(
    item: DataSet, own: Columns, native: Columns | None, home: str, rows: Mapping[str, Tensor] | None
) -> dict[Measure, float | None]:
    mine = rows[item.key] if rows else None
    measured = own.measures(mine)
    if item.role != "in_domain" and native is not None:
        measured |= own.detection(native, mine, rows[home] if rows else None)
    return measured
