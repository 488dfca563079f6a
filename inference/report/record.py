"""What every record of a report has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, get_args, overload

from pydantic import BaseModel, ConfigDict, Field

from probattn.sites import METHODS, BayesianAttention

ModelKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""What predicts: "deterministic", the baseline; a network of deterministic attention, by the ``key`` of its method;
"variational", whose target tokens have a latent source token each; "bayesian_mean", the mean over posterior draws; or
"bayesian_expectation", the network at the posterior expectation."""

LATENT = BayesianAttention.key


class _Keys(Sequence[str]):
    """Keys of models in the order of tables, those of the methods registered by now among them."""

    def __init__(self, first: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> None:
        self._first, self._last = first, last

    def _keys(self) -> tuple[str, ...]:
        return (
            *self._first,
            *(each.key for each in METHODS if each.key != LATENT),
            "variational",
            *self._last,
        )

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._keys()[index]

    def __len__(self) -> int:
        return len(self._keys())


SINGLE = _Keys()
"""Models of deterministic attention, one pass each, that a run can be about."""

MODELS = _Keys(("deterministic",), (LATENT, "bayesian_expectation"))
"""All models."""

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

Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A frozen record: unknown fields, wrong types, NaN and infinities are errors; a missing measurement is None."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
