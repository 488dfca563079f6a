"""Options of a policy, which the command line shows without importing what makes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probattn.options import ConformalScore, DrawingOptions, OpenShare, Positive

Score = Literal["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"]
"""What orders inputs, see :func:`probattn.metrics.functional.uncertainty`."""
Sets = Literal[ConformalScore, "interval"]
"""Conformal sets of classes, or intervals of numbers."""
ERROR = 0.05
"""The promised error without a cost."""


@dataclass(frozen=True)
class TriageOptions(DrawingOptions):
    """What is promised, and how inputs are ordered.

    Args:
        error: promised error among answered inputs; 0.05 without ``cost``, none with it. None is the threshold of
            least cost.
        confidence: with which the promise holds. It is one over the held-out data.
        cost: cost of a wrong answer, where a person's decision costs 1.
        by_class: a threshold, and a promise, for each predicted class. Each promise holds by itself.
        score: what orders inputs.
        sets: sets of classes that miss the true one no more often than promised; of numbers, intervals.
        novelty: share of the inputs like the held-out ones that, on average, may go to a person because they are far
            from the training data; without it the distance does not count.
        tolerance: how far from the true number a predicted one may be, in its units; needed for numbers alone.

    Raises:
        ValueError: a value is not as described.
    """

    error: OpenShare | None = None
    confidence: OpenShare = 0.95
    cost: Positive | None = None
    by_class: bool = False
    score: Score = "least_confidence"
    sets: Sets | None = None
    novelty: OpenShare | None = None
    tolerance: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error is None and self.cost is None:
            object.__setattr__(self, "error", ERROR)
        if self.error is None and self.sets is not None:
            raise ValueError("sets: expected a promised error with them, got none")
