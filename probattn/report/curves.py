"""Training curves from the records of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

from probattn.report.record import Curve, ModelKey

QUANTITIES = ("loss", "log_likelihood", "kl_nats", "kl_weight", "accuracy")
"""Quantities of the records that a report shows, if recorded."""

POINTS = 300
"""Points kept of a curve; longer ones are averaged in windows."""


def training_curves(
    records: Sequence[Mapping[str, Any]],
    model: ModelKey,
    *,
    quantities: Sequence[str] = QUANTITIES,
    points: int = POINTS,
) -> list[Curve]:
    """Training curves from the lines of a run's ``metrics.jsonl`` (:func:`probattn.inference.records.read_records`).

    Args:
        records: mappings with ``kind`` (train or validation), ``step`` and numbers; records without a quantity are
            skipped in its curve.
        model: network that was trained.
        quantities: names of the numbers.
        points: maximum number of points of a curve. Of more records, windows of neighbouring records are averaged; the
            step is the last one of the window.

    Returns:
        One curve per kind and quantity. Left out are quantities that are always 0, the KL weight in validation, and
        the KL weight altogether if no record has a KL.

    Example:
        >>> records = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 2)]
        >>> [(curve.name, curve.values) for curve in training_curves(records, "bayesian_mean")]
        [('loss', (1.0, 0.5))]
    """
    curves = []
    if not any(record.get("kl_nats") for record in records):
        quantities = [name for name in quantities if name != "kl_weight"]
    kinds: tuple[Literal["train", "validation"], ...] = ("train", "validation")
    for name, kind in product(quantities, kinds):
        series = [
            (int(record["step"]), float(record[name]))
            for record in records
            if record.get("kind") == kind and isinstance(record.get(name), (int, float))
        ]
        if any(value for _, value in series) and (name, kind) != ("kl_weight", "validation"):
            window = -(-len(series) // points)
            windows = [series[start : start + window] for start in range(0, len(series), window)]
            steps = tuple(rows[-1][0] for rows in windows)
            values = tuple(sum(value for _, value in rows) / len(rows) for rows in windows)
            curves.append(Curve(model=model, name=name, kind=kind, steps=steps, values=values, window=window))
    return curves
