"""Records of how attention agrees with probes: the content of a run's ``agreement.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from probattn.inference.report.record import Count, Probability, Record

Rating = Literal["attention", "probe", "uniform", "proxy", "saliency"]
"""Attention, the network's lexical probe, that of the network under uniform attention, the bag-of-words proxy's, and
gradient saliency."""


class Contextualized(Record):
    """An agreement told as the performance of a half-trained second run (Snell et al. 2021, Eq. 11).

    Attributes:
        performance: xi.
        step: where the second run first agreed more.
        reached: whether it did at all; a table stars the value where it did not.
    """

    performance: float
    step: Count
    reached: bool


class PairAgreement(Record):
    """Two ratings of the same input words, over all outputs.

    Attributes:
        first: whose highest-rated word is looked up.
        second: among whose highest-rated words.
        agreement: A(first, second) (Eq. 10).
        tau: mean of Kendall's rank correlation; None where no output has one, since a rating is constant.
        xi: by accuracy; None without a second run.
        xi_bleu: by BLEU; None where that was not recorded.
    """

    first: Rating
    second: Rating
    agreement: Probability
    tau: Annotated[float, Field(ge=-1, le=1)] | None
    xi: Contextualized | None = None
    xi_bleu: Contextualized | None = None


class Agreement(Record):
    """The row of a network in the paper's tables 2 to 6.

    Attributes:
        run: folder of the run.
        outputs: outputs over which means are taken.
        chance: agreement of ratings that have nothing to do with each other.
        accuracy: of the run's network on these examples.
        pairs: what agrees with what.
        uniform_step: the step of the run under uniform attention whose probe is meant, the one that the attention
            agrees with most (section A.7); None without such a run.
        course: agreement of the attention with that run's probe by step.
        second_accuracy: of the second run at its end, xi's largest value; None without one.
        second_bleu: the same by BLEU.
    """

    run: str
    outputs: Count
    chance: Probability
    accuracy: Probability
    pairs: tuple[PairAgreement, ...]
    uniform_step: Count | None = None
    course: Mapping[int, Probability] = Field(default_factory=dict)
    second_accuracy: Probability | None = None
    second_bleu: float | None = None

    def pair(self, first: Rating, second: Rating) -> PairAgreement | None:
        """One of them; None if it was not measured."""
        return next((item for item in self.pairs if (item.first, item.second) == (first, second)), None)
