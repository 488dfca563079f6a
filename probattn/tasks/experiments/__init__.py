"""Synthetic experiments: conditions that are trained from many seeds and compared."""

from probattn.tasks.experiments.measures import (
    first_steps,
    fisher_p,
    leaders,
    log_rank_p,
    median_step,
    reached,
    runs_of,
)
from probattn.tasks.experiments.page import experiment_table, headline, render
from probattn.tasks.experiments.results import ConditionRuns, ConditionTest, ExperimentResults, HeadCounts
from probattn.tasks.experiments.task import Experiments

__all__ = [
    "ConditionRuns",
    "ConditionTest",
    "ExperimentResults",
    "Experiments",
    "HeadCounts",
    "experiment_table",
    "first_steps",
    "fisher_p",
    "headline",
    "leaders",
    "log_rank_p",
    "median_step",
    "reached",
    "render",
    "runs_of",
]
