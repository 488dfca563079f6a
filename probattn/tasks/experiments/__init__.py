"""Synthetic experiments: conditions that are trained from many seeds and compared."""

from probattn.tasks.experiments.page import ExperimentView
from probattn.tasks.experiments.results import ConditionRuns, ConditionTest, ExperimentResults, HeadCounts
from probattn.tasks.experiments.task import Experiments

__all__ = ["ConditionRuns", "ConditionTest", "ExperimentResults", "ExperimentView", "Experiments"]
__all__ += ["HeadCounts"]
