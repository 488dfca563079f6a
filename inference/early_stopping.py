"""Early stopping on one or several validation metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from probattn.options import Count, NonNegative, Options

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class EarlyStopping(Options):
    """Stops when a validation metric has not improved for some evaluations; the best weights are restored.

    Args:
        metric: name in the validation records: "loss", "log_likelihood", ... or one of the driver's
            ``validation_metrics``.
        patience: evaluations without improvement that are borne, >= 1.
        mode: whether less ("min") or more ("max") is better.
        min_delta: an improvement is a change by more than this, >= 0.
        also: further metrics and their modes. The patience then starts anew whenever one of the metrics is at least as
            good as it ever was, and the best weights are the last at which all of them were at once (Velickovic et al.
            2018 stop so on loss and accuracy). What equals the best counts, for accuracies often do.

    Raises:
        ValueError: a number out of its range, an unknown mode, or a metric named twice.

    Example:
        >>> state, rule = StoppingState(), EarlyStopping("accuracy", patience=1, mode="max")
        >>> [state.update(rule, {"accuracy": value}, step) for step, value in enumerate((0.5, 0.7, 0.6))]
        [True, True, False]
        >>> state.exhausted(rule), state.best_step
        (True, 1)
    """

    metric: str = "loss"
    patience: Count = 3
    mode: Mode = "min"
    min_delta: NonNegative = 0.0
    also: Mapping[str, Mode] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric in (self.also or {}):
            raise ValueError(f"EarlyStopping.also: expected metrics other than {self.metric!r}")

    @property
    def modes(self) -> dict[str, Mode]:
        """All metrics with their modes, the first one first."""
        return {self.metric: self.mode, **(self.also or {})}

    def values(self, means: Mapping[str, float]) -> dict[str, float]:
        """The metrics among an evaluation's means, in the order of :attr:`modes`.

        Raises:
            ValueError: there is none of a name.
        """
        for name in self.modes:
            if name not in means:
                where = "metric" if name == self.metric else "also"
                raise ValueError(
                    f"EarlyStopping.{where}: no validation metric is called {name!r}; there are {', '.join(means)}"
                )
        return {name: means[name] for name in self.modes}


@dataclass
class StoppingState:
    """The best evaluation so far and those since.

    Attributes:
        best: the first metric at ``best_step``.
        best_step: the step of the best evaluation.
        since_best: evaluations since the patience started anew.
        marks: the best value of each metric, at whatever step.
    """

    best: float | None = None
    best_step: int | None = None
    since_best: int = 0
    marks: dict[str, float] = field(default_factory=dict)

    def update(self, rule: EarlyStopping, values: Mapping[str, float], step: int) -> bool:
        """Takes in an evaluation; True if it is the best so far. A value that is not a number never is."""
        good = {name: self._is_good(rule, name, value) for name, value in values.items()}
        for name, value in values.items():
            if good[name] and (name not in self.marks or _less(rule, name, value, self.marks[name])):
                self.marks[name] = value
        self.since_best = 0 if any(good.values()) else self.since_best + 1
        best = all(good.values())
        if best:
            self.best, self.best_step = values[rule.metric], step
        return best

    def exhausted(self, rule: EarlyStopping) -> bool:
        """Whether the patience is used up."""
        return self.since_best >= rule.patience

    def _is_good(self, rule: EarlyStopping, name: str, value: float) -> bool:
        """Whether a metric improves on its mark; with others beside it, also whether it equals it."""
        if math.isnan(value) or name not in self.marks:
            return not math.isnan(value)
        mark = self.marks[name]
        if rule.also and rule.min_delta == 0 and value == mark:
            return True
        return _less(rule, name, value, mark, rule.min_delta)


def _less(rule: EarlyStopping, name: str, value: float, mark: float, by: float = 0.0) -> bool:
    """Whether a value is better than a mark by more than ``by``."""
    sign = 1 if rule.modes[name] == "min" else -1
    return sign * value < sign * mark - by
