"""What every record of a report has in common."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

ModelKey = Literal[
    "deterministic",
    "aligned",
    "repulsive",
    "regularised",
    "variational",
    "bayesian_mean",
    "bayesian_expectation",
]
"""What predicts: the baseline; a network of deterministic attention whose queries and keys were aligned, whose heads
repelled each other, or whose heads' likeness was a penalty; one whose target tokens have a latent source token each;
the mean over posterior draws; or the network at the posterior expectation."""

SINGLE: tuple[ModelKey, ...] = ("aligned", "repulsive", "regularised", "variational")
"""Models of deterministic attention, one pass each, that a run can be about."""

Role = Literal["in_domain", "shifted", "out_of_domain"]
"""What a data set is for: the task itself, the task on other material, or material that is not the task at all."""

ClassMeasure = Literal["matthews", "f1"]
"""Measures of the predicted classes that are taken where they are asked for."""

Measure = Literal[
    "accuracy", "matthews", "f1", "nll", "brier", "ece", "overconfidence", "aurc", "pavpu", "auroc", "fpr95"
]
"""Measures that are compared between models."""

DETECTION: tuple[Measure, ...] = ("auroc", "fpr95")
"""Measures of how well a data set is told from the task's own."""

MEASURES: tuple[Measure, ...] = get_args(Measure)
MODELS: tuple[ModelKey, ...] = get_args(ModelKey)

Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A frozen record: unknown fields, wrong types, NaN and infinities are errors; a missing measurement is None."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
