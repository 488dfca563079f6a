"""Schedules of the KL weight: from a small value to its final one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from probattn.options import Natural, NonNegative, Options, Positive, Share

KLScheduleKind = Literal["constant", "linear", "sigmoid"]


@dataclass(frozen=True)
class KLSchedule(Options):
    r"""Weight of the KL in the objective as a pure function of the step.

    With t = min(step / W, 1), W the length of the warm-up in steps and s the logistic function:

    .. math::
        w_\text{constant} = \text{final}, \quad
        w_\text{linear} = \text{final} \cdot t, \quad
        w_\text{sigmoid} = \text{final} \cdot \frac{s(a(2t - 1)) - s(-a)}{s(a) - s(-a)}

    "We add a weight to the KL term and anneal it from a small value to one" (Zhang et al. 2021, section 3.3, after
    Bowman et al. 2016, whose logistic curve is shifted and stretched here so that it starts at exactly 0 and ends at
    exactly ``final``).

    Args:
        kind: "constant", "linear" or "sigmoid".
        final: weight after the warm-up, >= 0; 1 is the evidence lower bound as each site's reduction defines it.
        warmup_steps: W in optimiser steps, >= 0; None takes ``warmup_fraction``. 0 starts at ``final``.
        warmup_fraction: W as a fraction of the whole run, in [0, 1]; used where ``warmup_steps`` is None.
        steepness: a > 0 of the sigmoid.

    Raises:
        ValueError: an unknown kind or a number out of its range.

    Example:
        >>> schedule = KLSchedule("linear", warmup_steps=10)
        >>> [schedule.weight(step, total_steps=100) for step in (0, 5, 10, 99)]
        [0.0, 0.5, 1.0, 1.0]
    """

    kind: KLScheduleKind = "linear"
    final: NonNegative = 1.0
    warmup_steps: Natural | None = None
    warmup_fraction: Share = 0.5
    steepness: Positive = 6.0

    def warmup(self, total_steps: int) -> float:
        """Length of the warm-up in steps, W, of a run of ``total_steps``."""
        return self.warmup_fraction * total_steps if self.warmup_steps is None else self.warmup_steps

    def weight(self, step: int, total_steps: int) -> float:
        """Weight for the update that follows ``step`` completed ones.

        Args:
            step: completed updates, >= 0; the first update has step 0.
            total_steps: updates of the whole run, >= 1.

        Returns:
            A number in [0, ``final``]; "linear" and "sigmoid" start at exactly 0.

        Raises:
            ValueError: a negative step or a run without steps.
        """
        if step < 0 or total_steps < 1:
            raise ValueError(
                f"KLSchedule.weight: expected step >= 0 and total_steps >= 1, got {step} and {total_steps}"
            )
        warmup = self.warmup(total_steps)
        if self.kind == "constant" or step >= warmup:
            return self.final
        progress = step / warmup
        if self.kind == "linear":
            return self.final * progress
        low, high = _logistic(-self.steepness), _logistic(self.steepness)
        return self.final * (_logistic(self.steepness * (2 * progress - 1)) - low) / (high - low)


def _logistic(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))  # does not overflow
