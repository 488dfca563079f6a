"""Synthetic experiments: conditions that are trained from many seeds and compared."""

from probattn.tasks.experiments.page import ExperimentView
from probattn.tasks.experiments.results import (
    ConditionRuns,
    ConditionTest,
    ExperimentResults,
    HeadCounts,
    first_steps,
    fisher_p,
    leaders,
    log_rank_p,
    median_step,
    reached,
    runs_of,
)
from probattn.tasks.experiments.task import Experiments

__all__ = [
    "ConditionRuns",
    "ConditionTest",
    "ExperimentResults",
    "ExperimentView",
    "Experiments",
    "HeadCounts",
    "first_steps",
    "fisher_p",
    "leaders",
    "log_rank_p",
    "median_step",
    "reached",
    "runs_of",
]
