"""Results of a run of pre-training: the records of ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping

from probattn.inference.report import Heads, ModelKey
from probattn.inference.report.record import Probability, Record
from probattn.tasks.fine_tuning.results import MeasuredResults


class JudgedToken(Record):
    """A token of a text as the discriminator read it.

    Attributes:
        token: what stood there.
        original: what the generator replaced; None where the token is the original one.
        masked: whether the generator chose it.
        probabilities: of having been replaced, by model.
    """

    token: str
    original: str | None = None
    masked: bool = False
    probabilities: Mapping[ModelKey, Probability]


class PretrainingResults(MeasuredResults):
    """Everything that the report shows.

    Attributes:
        samples: test passages, token by token, with the replacements of the run's own generator.
        heads: how heads differ; None where no method was there to keep them apart.
    """

    samples: tuple[tuple[JudgedToken, ...], ...] = ()
    heads: Heads | None = None
