"""What was measured in a run of translation, as frozen records: the content of its ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.inference.report.dynamics_records import Dynamics
from probattn.inference.report.heads_records import Heads
from probattn.inference.report.measurements import Comparison, Curve
from probattn.inference.report.record import Count, ModelKey, Probability, Record
from probattn.inference.report.results import DataSet, RunDescription


class TranslationScores(Record):
    """What one model reached on the test pairs.

    Attributes:
        model: which model.
        bleu: BLEU, 0 to 100.
        precisions: of n-grams of length 1 to 4, 0 to 100.
        brevity_penalty: factor for translations shorter than their references.
        hypothesis_length: tokens of all translations, as BLEU counts them.
        reference_length: tokens of all references.
        perplexity: per subword of the references, teacher-forced, without label smoothing.
        token_accuracy: share of reference subwords that are the network's first choice, teacher-forced.
        subwords: number of those subwords, ends included.
        step_seconds: median time of an update; None where none was recorded.
    """

    model: ModelKey
    bleu: Annotated[float, Field(ge=0, le=100.001)]
    precisions: tuple[float, ...]
    brevity_penalty: Probability
    hypothesis_length: Count
    reference_length: Count
    perplexity: Annotated[float, Field(ge=1)] | None
    token_accuracy: Probability
    subwords: Count
    step_seconds: Annotated[float, Field(ge=0)] | None = None


class BleuDifference(Comparison):
    """A comparison by BLEU on the same pairs."""


class TranslationSample(Record):
    """A test sentence with its reference and what each model made of it."""

    source: str
    reference: str
    translations: Mapping[ModelKey, str]


class TranslationResults(Record):
    """Everything the report of a run of translation shows.

    Attributes:
        schema_version: version of these records.
        kind: what they are about.
        run: what was run.
        languages: from which to which.
        search: how was translated, in words.
        signature: sacrebleu's description of BLEU.
        test: the test pairs.
        scores: one entry a model, the baseline first.
        differences: the run's own network minus the deterministic one.
        samples: translations.
        curves: training curves.
        dynamics: how attention came about, by network, the run's own last; empty where that was not recorded.
        heads: how heads differ; None where no method was there to keep them apart.
    """

    schema_version: Literal[2] = 2
    kind: Literal["translation"] = "translation"
    run: RunDescription
    languages: tuple[str, str]
    search: str
    signature: str
    test: DataSet
    scores: Annotated[tuple[TranslationScores, ...], Field(min_length=1)]
    differences: tuple[BleuDifference, ...] = ()
    samples: tuple[TranslationSample, ...] = ()
    curves: tuple[Curve, ...] = ()
    dynamics: tuple[Dynamics, ...] = ()
    heads: Heads | None = None

    @model_validator(mode="after")
    def _known_models(self) -> TranslationResults:
        known = [score.model for score in self.scores]
        named = {item.model for item in self.differences}.union(*(item.translations for item in self.samples))
        if named - set(known):
            raise ValueError(f"expected every record to name one of the models {known}, got {sorted(named)}")
        return self

    def score(self, model: ModelKey) -> TranslationScores | None:
        """Scores of a model; None if it was not measured."""
        return next((item for item in self.scores if item.model == model), None)
