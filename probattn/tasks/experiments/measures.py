"""When runs have learned, and whether two conditions differ in that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import scipy

from probattn.checks import shown
from probattn.inference.records import Number, RecordsError

Values = tuple[tuple[Number | None, ...], ...]
"""A measure, ``[step][run]``; None where a run had nothing to measure."""


def runs_of(
    records: Sequence[Mapping[str, Any]], name: str, runs: int | None = None
) -> tuple[tuple[int, ...], Values]:
    """A measure of all runs from the records of a condition.

    Args:
        records: of :class:`probattn.inference.many_runs.ManyRunsDriver`.
        name: the measure.
        runs: how many there should be; those of the first record by default.

    Returns:
        The evaluated steps and the values; both empty where it was not measured.

    Raises:
        RecordsError: a record has no value for each of ``runs``.

    Example:
        >>> runs_of([{"kind": "validation", "step": 5, "accuracy": [0.5, 1.0]}], "accuracy")
        ((5,), ((0.5, 1.0),))
    """
    validations = [record for record in records if record.get("kind") == "validation" and name in record]
    for record in validations:
        values = record[name]
        expected = len(values) if runs is None and isinstance(values, list) else runs
        if not isinstance(values, list) or len(values) != expected:
            several = "a list of values" if expected is None else f"{expected} values"
            raise RecordsError(
                f"records: expected {several} of {name!r} at step {record['step']}, one for each run, got "
                f"{shown(values)}; train again"
            )
        runs = expected
    return tuple(record["step"] for record in validations), tuple(
        tuple(record[name]) for record in validations
    )


def first_steps(steps: Sequence[int], values: Values, threshold: float) -> tuple[int | None, ...]:
    """The first evaluated step at which each run reaches a threshold; None for runs that never do.

    Example:
        >>> first_steps((0, 10, 20), ((0.1, 0.1), (0.99, 0.5), (0.9, 0.6)), 0.99)
        (10, None)
    """
    columns = zip(*values, strict=True)
    return tuple(
        next(
            (
                step
                for step, value in zip(steps, column, strict=True)
                if value is not None and value >= threshold
            ),
            None,
        )
        for column in columns
    )


def reached(first: Sequence[int | None], by_step: int) -> int:
    """Number of runs that had learned by a step.

    Example:
        >>> reached((10, None, 30), 20)
        1
    """
    return sum(step is not None and step <= by_step for step in first)


def median_step(first: Sequence[int | None]) -> float | None:
    """Median of the first steps, runs that never learn counting as later than all; None if it is one of those.

    Example:
        >>> median_step((10, 30, None)), median_step((10, None))
        (30.0, None)
    """
    middle = float(median(math.inf if step is None else step for step in first))
    return middle if math.isfinite(middle) else None


def fisher_p(first: Sequence[int | None], others: Sequence[int | None], by_step: int) -> float:
    """Fisher's exact test, two-sided: whether runs of two conditions are equally likely to have learned by a step.

    Example:
        >>> round(fisher_p((10,) * 20, (10,) * 14 + (None,) * 6, 20), 4)
        0.0202
    """
    table = [[reached(item, by_step), len(item) - reached(item, by_step)] for item in (first, others)]
    return min(float(scipy.stats.fisher_exact(table)[1]), 1.0)


def log_rank_p(
    first: Sequence[int | None], others: Sequence[int | None], last_steps: tuple[int, int]
) -> float | None:
    """Log-rank test, two-sided: whether the times to learn of two conditions have one distribution.

    Runs that never learn are censored at the last evaluated step.

    Args:
        first: first steps of one condition's runs.
        others: of the other's.
        last_steps: last evaluated steps of both.

    Returns:
        The p value; None where it is not defined: no run learned, or all that did learned when no other was left.

    Example:
        >>> log_rank_p((10, 20, 20), (40, 50, None), (60, 60)) < 0.05
        True
        >>> log_rank_p((None, None), (None, None), (60, 60)) is None
        True
    """
    if all(step is None for step in (*first, *others)):
        return None
    samples = [
        scipy.stats.CensoredData(
            uncensored=[step for step in steps if step is not None],
            right=[last] * sum(step is None for step in steps),
        )
        for steps, last in zip((first, others), last_steps, strict=True)
    ]
    if len(set(first) | set(others)) == 1:  # no variance: everyone learned at the same step
        return None
    p_value = float(scipy.stats.logrank(*samples).pvalue)
    return p_value if math.isfinite(p_value) else None


def leaders(measures: Mapping[str, Values], names: Sequence[str], index: int) -> dict[str, int]:
    """In how many runs each of some measures is the largest of them, at one evaluated step.

    Args:
        measures: by name, ``[step][run]``.
        names: the ones to compare; of several that share the maximum the first counts.
        index: number of the step among the evaluated ones.

    Returns:
        Runs by name; runs that had none of them to measure count for nobody.

    Example:
        >>> leaders({"here": ((0.5, 2.0, None),), "last": ((0.7, 1.0, None),)}, ("here", "last"), 0)
        {'here': 1, 'last': 1}
    """
    counts = dict.fromkeys(names, 0)
    for values in zip(*(measures[name][index] for name in names), strict=True):
        there = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if there:
            counts[max(there, key=lambda name: there[name])] += 1
    return counts
