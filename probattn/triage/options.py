"""Options of a policy, which the command line shows without importing what makes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probattn.options import ConformalScore, DrawingOptions, OpenShare, Positive

Score = Literal["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"]
"""Uncertainty measure by which inputs are ordered, see :func:`probattn.metrics.functional.uncertainty`."""
Sets = Literal[ConformalScore, "interval"]
"""Conformal sets of classes, or intervals of numbers."""
ERROR = 0.05
"""The target error rate without a cost."""


@dataclass(frozen=True)
class TriageOptions(DrawingOptions):
    """Guarantee, uncertainty measure and predictions (``num_samples`` draws, their seed, or "moments") of a policy.

    Args:
        error: target error rate among answered inputs; 0.05 without ``cost``, none with it. With ``cost``
            and no target, the threshold is that of least cost.
        confidence: probability, over the held-out data, that the guarantee holds.
        cost: cost of a wrong answer, in units of the cost of a human review.
        by_class: a separate threshold and guarantee for each predicted class.
        score: uncertainty by which inputs are ordered.
        sets: conformal sets of classes, which miss the true class with probability ``error`` at most, "lac" (least
            ambiguous) or "aps" (adaptive); or "interval" for intervals of numbers.
        novelty: largest share of in-domain inputs, on average, that is left for human review as out-of-distribution
            by their distance from the training data; without it the distance does not count.
        tolerance: in regression, largest difference from the true number that counts as right, in its units.

    Raises:
        ValueError: an option out of its range, or ``sets`` without ``error``.
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
