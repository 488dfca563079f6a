"""Results of a run of pre-training: the records of ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping

from probattn.report import ModelKey, Results
from probattn.report.record import Probability, Record


class PredictedToken(Record):
    """A token of a text as the discriminators read it.

    Attributes:
        token: as it reads within the text, with the space before it where it begins a word.
        original: the token that the generator replaced; None where it is the original one.
        probabilities: of having been replaced, by model.
    """

    token: str
    original: str | None = None
    probabilities: Mapping[ModelKey, Probability]


class PretrainingResults(Results):
    """Everything that the report shows.

    Attributes:
        samples: test passages, token by token, with the replacements of the run's own generator.
    """

    samples: tuple[tuple[PredictedToken, ...], ...] = ()
