"""What an agreement is worth, told as the performance of a half-trained model (Snell et al. 2021, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class EvaluatedStep(NamedTuple):
    """One evaluation of the second run, which differs from the first only by its seed."""

    step: int
    """Training steps done, >= 0."""
    performance: float
    """Accuracy, BLEU: whatever the model is judged by."""
    agreement: float
    """Mean agreement of this step's attention with the attention of the first run when it had finished."""


@dataclass(frozen=True)
class ContextualizedAgreement:
    """What :func:`contextualized_agreement` found; printed as the paper's tables print it, ``83.53*`` if starred.

    Attributes:
        performance: xi: of the first step whose agreement is larger; of the last step where none is.
        step: that step.
        reached: whether some step's agreement is larger. Where none is, the value is starred in a table.
    """

    performance: float
    step: int
    reached: bool

    def __str__(self) -> str:
        return f"{self.performance:.2f}{'' if self.reached else '*'}"


def contextualized_agreement(
    agreement: float, second_run: Iterable[EvaluatedStep | tuple[int, float, float]]
) -> ContextualizedAgreement:
    r"""Performance of a second run when its attention first agrees with the first run's by more than ``agreement``.

    .. math:: \xi(u, v) = \hat p\bigl(\inf\{\tau : A(\alpha, \hat\alpha(\tau)) > A(u, v)\}\bigr)

    (Snell et al. 2021, Eq. 11). Two attentions that differ by the seed alone do not agree perfectly either; xi tells
    how far a model must have been trained until its attention says as much about another's as ``v`` says about ``u``.
    Only evaluated steps are known, so xi is as coarse as the evaluations.

    Args:
        agreement: A(u, v), the mean over output words.
        second_run: (step, performance, agreement) of every evaluation of the second run, in order of steps.

    Returns:
        The performance, its step, and whether the agreement was exceeded at all. Where it never was, the performance
        is that of the last step (xi*), as the paper reports it with a star.

    Raises:
        ValueError: there is no evaluated step, a step is negative, the steps do not rise, or an agreement or
            performance is NaN.

    Example:
        >>> run = [(0, 0.10, 0.07), (50, 0.31, 0.22), (100, 0.43, 0.40), (500, 0.66, 0.71)]
        >>> print(contextualized_agreement(0.31, run), contextualized_agreement(0.80, run))
        0.43 0.66*
    """
    run = [EvaluatedStep(*each) for each in second_run]
    if not run:
        raise ValueError("contextualized_agreement: expected evaluated steps of a second run, got none")
    for what, values in (
        ("an agreement", [agreement, *(each.agreement for each in run)]),
        ("a performance", [each.performance for each in run]),
    ):
        if any(map(math.isnan, values)):
            raise ValueError(
                f"contextualized_agreement: expected numbers, got {what} of NaN (no output word counted?)"
            )
    if run[0].step < 0:
        raise ValueError(f"contextualized_agreement: expected steps >= 0, got {run[0].step}")
    for before, after in pairwise(run):
        if after.step <= before.step:
            raise ValueError(
                f"contextualized_agreement: expected rising steps, got {after.step} after {before.step}; sort them"
            )
    for each in run:
        if each.agreement > agreement:
            return ContextualizedAgreement(each.performance, each.step, reached=True)
    return ContextualizedAgreement(run[-1].performance, run[-1].step, reached=False)
