"""Early stopping on a validation metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class EarlyStopping:
    """Stops when a validation metric has not improved for some evaluations; the best weights are restored.

    Args:
        metric: name in the validation records: "loss", "log_likelihood", ... or one of the driver's
            ``validation_metrics``.
        patience: evaluations without improvement that are borne, >= 1.
        mode: whether less ("min") or more ("max") is better.
        min_delta: an improvement is a change by more than this, >= 0.

    Raises:
        ValueError: a number out of its range or an unknown mode.

    Example:
        >>> state, rule = StoppingState(), EarlyStopping("accuracy", patience=1, mode="max")
        >>> [state.update(rule, value, step) for step, value in enumerate((0.5, 0.7, 0.6))]
        [True, True, False]
        >>> state.exhausted(rule), state.best_step
        (True, 1)
    """

    metric: str = "loss"
    patience: int = 3
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"EarlyStopping.patience: expected an integer >= 1, got {self.patience}")
        if self.mode not in ("min", "max"):
            raise ValueError(f"EarlyStopping.mode: expected 'min' or 'max', got {self.mode!r}")
        if not self.min_delta >= 0:
            raise ValueError(f"EarlyStopping.min_delta: expected a number >= 0, got {self.min_delta}")

    def value(self, means: Mapping[str, float]) -> float:
        """The metric among an evaluation's means.

        Raises:
            ValueError: there is none of that name.
        """
        if self.metric not in means:
            raise ValueError(
                f"EarlyStopping.metric: no validation metric is called {self.metric!r}; there are {', '.join(means)}"
            )
        return means[self.metric]


@dataclass
class StoppingState:
    """The best value so far, the step it was seen at, and the evaluations since."""

    best: float | None = None
    best_step: int | None = None
    since_best: int = 0

    def update(self, rule: EarlyStopping, value: float, step: int) -> bool:
        """Takes in an evaluation; True if it is the best so far. A value that is not a number never is."""
        sign = 1 if rule.mode == "min" else -1
        improved = not math.isnan(value) and (
            self.best is None or sign * value < sign * self.best - rule.min_delta
        )
        if improved:
            self.best, self.best_step, self.since_best = value, step, 0
        else:
            self.since_best += 1
        return improved

    def exhausted(self, rule: EarlyStopping) -> bool:
        """Whether the patience is used up."""
        return self.since_best >= rule.patience

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self.best, self.best_step, self.since_best = state["best"], state["best_step"], state["since_best"]
