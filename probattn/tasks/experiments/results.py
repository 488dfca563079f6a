"""When runs of an experiment have learned, whether conditions differ in that, and the records of ``metrics.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Annotated, Any, Literal

import scipy
from pydantic import Field, model_validator

from probattn.checks import shown
from probattn.inference.records import Number, RecordsError
from probattn.report.record import Count, Probability, Record, RunDescription

Values = tuple[tuple[Number | None, ...], ...]
"""A measure, ``[step][run]``; None where a run had nothing to measure."""


def runs_of(
    records: Sequence[Mapping[str, Any]], name: str, runs: int | None = None
) -> tuple[tuple[int, ...], Values]:
    """Evaluated steps and a measure of all runs, both empty without any; ``RecordsError`` for other than ``runs``."""
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
    """The first evaluated step at which each run reaches a threshold; None for runs that never do."""
    learned = (
        (step for step, value in zip(steps, column, strict=True) if value is not None and value >= threshold)
        for column in zip(*values, strict=True)
    )
    return tuple(next(run, None) for run in learned)


def reached(first: Sequence[int | None], by_step: int) -> int:
    """Number of runs that had learned by a step."""
    return sum(step is not None and step <= by_step for step in first)


def median_step(first: Sequence[int | None]) -> float | None:
    """Median of the first steps, runs that never learn counting as later than all; None if it is one of those."""
    middle = float(median(math.inf if step is None else step for step in first))
    return middle if math.isfinite(middle) else None


def fisher_p(first: Sequence[int | None], others: Sequence[int | None], by_step: int) -> float:
    """Fisher's exact test, two-sided: whether runs of two conditions are equally likely to have learned by a step."""
    table = [[reached(item, by_step), len(item) - reached(item, by_step)] for item in (first, others)]
    return min(float(scipy.stats.fisher_exact(table)[1]), 1.0)


def log_rank_p(
    first: Sequence[int | None], others: Sequence[int | None], last_steps: tuple[int, int]
) -> float | None:
    """Log-rank test, two-sided, of the times to learn, censored at the last steps; None where it is not defined."""
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
    """In how many runs each measure is the largest of some (the first of equal ones), at one evaluated step."""
    counts = dict.fromkeys(names, 0)
    for values in zip(*(measures[name][index] for name in names), strict=True):
        there = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if there:
            counts[max(there, key=lambda name: there[name])] += 1
    return counts


LOG_ODDS = ("keyword", "next_word", "mean", "last")
"""Measures of a keyword condition: log-odds at these places of a sentence."""


class ConditionRuns(Record):
    """The runs of a condition; ``reached`` counts those that learned in time, ``chance`` is of a right position."""

    key: str
    title: str
    task: str
    steps: Annotated[tuple[Count, ...], Field(min_length=1)]
    measures: Mapping[str, Values]
    first_steps: tuple[Count | None, ...]
    reached: Count
    median_step: float | None = None
    chance: Probability | None = None
    seconds: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _whole(self) -> ConditionRuns:
        for name, values in self.measures.items():
            if len(values) != len(self.steps) or any(len(row) != len(self.first_steps) for row in values):
                raise ValueError(f"measures.{name}: expected a value for each step and run")
        return self


class ConditionTest(Record):
    """p values of a condition against the first: of the runs that learned in time, and of the steps to learn."""

    condition: str
    against: str
    fisher: Probability
    log_rank: Probability | None = None


class HeadCounts(Record):
    """Heads that were tried in a model of initial values: how many learned in time, and how many did not."""

    model: int
    good: Count
    bad: Count


class ExperimentResults(Record):
    """Everything the report shows: conditions in the recipe's order, tests against the first, tried heads."""

    schema_version: Literal[4] = 4
    kind: Literal["experiment"] = "experiment"
    run: RunDescription
    task: Literal["copy", "keyword"]
    threshold: Probability
    by_step: Count
    conditions: Annotated[tuple[ConditionRuns, ...], Field(min_length=1)]
    tests: tuple[ConditionTest, ...] = ()
    search: tuple[HeadCounts, ...] = ()
    search_steps: Count | None = None

    def value(self, name: str, condition: str, step: str) -> float | None:
        """A figure of a condition at an evaluated step, "test" the last; None where it was not measured.

        Args:
            name: a measure, of which it is the mean over runs; ``learned``, the share of runs that have; or
                ``largest_keyword`` and the like, the share of runs whose log-odds are largest there.
            condition: its key.
            step: the evaluated step.
        """
        item = next(item for item in self.conditions if item.key == condition)
        at = item.steps[-1] if step == "test" else int(step)
        if at not in item.steps:
            return None
        index, (kind, _, token) = item.steps.index(at), name.partition("_")
        if name == "learned":
            return reached(item.first_steps, at) / len(item.first_steps)
        if kind == "largest":
            tokens = [name for name in LOG_ODDS if name != "mean"]
            return leaders(item.measures, tokens, index)[token] / len(item.first_steps)
        values = [value for value in item.measures[name][index] if value is not None]
        return fmean(values) if values else None

    @model_validator(mode="after")
    def _measured(self) -> ExperimentResults:
        if self.search and self.search_steps is None:
            raise ValueError("expected search_steps beside what the search found, found none")
        for item in self.conditions:
            accuracy = item.measures.get("accuracy")
            if accuracy is None or all(value is None for value in accuracy[-1]):
                raise ValueError(f"condition {item.key!r}: expected an accuracy at the last step, found none")
            odds = {"keyword"} & item.measures.keys() or self.task == "keyword"
            missing = [name for name in LOG_ODDS if odds and name not in item.measures]
            if missing:
                raise ValueError(f"condition {item.key!r}: expected log-odds {missing[0]!r}, found none")
        return self
