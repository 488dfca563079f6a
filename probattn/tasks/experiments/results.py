"""What was measured in a synthetic experiment, as frozen records: the content of its ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.report.record import Count, Probability, Record, RunDescription
from probattn.tasks.experiments.measures import Values

LOG_ODDS = ("keyword", "next_word", "mean", "last")
"""Measures of a keyword condition: log-odds at these places of a sentence."""


class ConditionRuns(Record):
    """The runs of a condition.

    Attributes:
        key: its name in the recipe.
        title: its name for people.
        task: what the runs learned, in words.
        steps: evaluated steps.
        measures: by name, ``[step][run]``.
        first_steps: first evaluated step at which each run reached the threshold.
        reached: runs that did by the step that counts.
        median_step: median of those steps; None where less than half of the runs ever did.
        chance: share of output words whose position is right by chance; None where there are none.
        seconds: time of training.
    """

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
    """Whether a condition differs from the first in the times to learn.

    Attributes:
        condition: which.
        against: the first.
        fisher: p value of Fisher's exact test on the runs that had learned by the step that counts.
        log_rank: p value of the log-rank test on the steps; None where it is not defined.
    """

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
    """Everything the report of an experiment shows.

    Attributes:
        schema_version: version of these records.
        kind: what they are about.
        run: what was run.
        task: "copy" or "keyword".
        threshold: accuracy at which a run counts as having learned.
        by_step: update by which those runs are counted.
        conditions: in the recipe's order; the others are compared with the first.
        tests: one for each of the others.
        search: what the search for heads found, by model.
        search_steps: updates by which a good head had learned; None where nothing was searched.
    """

    schema_version: Literal[3] = 3
    kind: Literal["experiment"] = "experiment"
    run: RunDescription
    task: Literal["copy", "keyword"]
    threshold: Probability
    by_step: Count
    conditions: Annotated[tuple[ConditionRuns, ...], Field(min_length=1)]
    tests: tuple[ConditionTest, ...] = ()
    search: tuple[HeadCounts, ...] = ()
    search_steps: Count | None = None

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
