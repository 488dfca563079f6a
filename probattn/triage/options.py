"""Options of a policy, which the command line shows without importing what makes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probattn.options import ConformalScore, DrawingOptions, OpenShare, Positive

Score = Literal["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"]
"""The uncertainty that orders inputs, see :func:`probattn.metrics.functional.uncertainty`."""
Sets = Literal[ConformalScore, "interval"]
"""Conformal sets of classes, or intervals of numbers."""
ERROR = 0.05
"""The target error rate without a cost."""


@dataclass(frozen=True)
class TriageOptions(DrawingOptions):
    """The guarantee, and the score that orders inputs.

    Args:
        error: target error rate among answered inputs; 0.05 without ``cost``, none with it. None is the threshold of
            least cost.
        confidence: probability, over the held-out data, that the guarantee holds.
        cost: cost of a wrong answer, where a human review costs 1.
        by_class: a separate threshold and guarantee for each predicted class.
        score: uncertainty by which inputs are ordered.
        sets: conformal sets of classes, which miss the true one at most at the target rate; or intervals of numbers.
        novelty: largest share of in-domain inputs, on average, that is left for human review as out-of-distribution
            by their distance from the training data; without it the distance does not count.
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
            raise ValueError("sets: expected a target error rate with them, got none")
