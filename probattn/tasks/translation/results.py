"""Results of translation: the records of ``metrics.json`` and how they are measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from probattn.inference.records import Record as StepRecord
from probattn.metrics.functional import bleu_from_counts
from probattn.report import (
    Alignment,
    Comparison,
    Curve,
    DataSet,
    Dynamics,
    Heads,
    ModelKey,
    RunDescription,
    SiteHealth,
    bootstrap_p,
    training_curves,
)
from probattn.report.record import Count, Probability, Record

QUANTITIES = ("loss", "cross_entropy", "token_accuracy", "kl_nats", "factors")
"""What a report of translation shows of the records of training, where it is there."""


class TranslationScores(Record):
    """Scores of one model on the test pairs.

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
        alignment: distances of queries and keys; None where no method aligns them.
        heads: how heads differ; None where no method keeps them apart.
        health: the posterior, per site.
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
    alignment: Alignment | None = None
    heads: Heads | None = None
    health: tuple[SiteHealth, ...] = ()

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


def translation_scores(
    model: ModelKey, counts: Tensor, tokens: Mapping[str, float], records: Sequence[StepRecord] = ()
) -> TranslationScores:
    """Scores of one model.

    Args:
        model: which.
        counts: ``[N, 10]``, as :func:`probattn.metrics.functional.bleu_counts` gives them.
        tokens: sums over the test pairs of ``nll``, ``tokens`` and ``correct``.
        records: of its training, for the time of an update.
    """
    score = bleu_from_counts(counts)
    return TranslationScores(
        model=model,
        bleu=score.score,
        precisions=score.precisions,
        brevity_penalty=score.brevity_penalty,
        hypothesis_length=score.hypothesis_length,
        reference_length=score.reference_length,
        perplexity=perplexity(tokens["nll"], tokens["tokens"]),
        token_accuracy=tokens["correct"] / tokens["tokens"],
        subwords=int(tokens["tokens"]),
        step_seconds=step_seconds(records),
    )


def perplexity(nll: float, tokens: float) -> float | None:
    """exp(nll / tokens); None where that is not finite.

    Example:
        >>> perplexity(2.0, 1.0)
        7.38905609893065
    """
    return math.exp(nll / tokens) if nll / tokens < 700 else None


def step_seconds(records: Sequence[StepRecord]) -> float | None:
    """Median time of an update over the records of training; evaluations and checkpoints fall into few of them."""
    rates = []
    before = 0
    for record in records:
        if record.get("kind") != "train":
            continue
        step = int(record["step"])
        if step > before and isinstance(record.get("seconds"), (int, float)):
            rates.append(float(record["seconds"]) / (step - before))
        before = step
    return statistics.median(rates) if rates else None


def bleu_difference(
    model: ModelKey,
    counts: Tensor,
    baseline: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> BleuDifference:
    """BLEU of a model minus that of the baseline, with a percentile interval of a paired bootstrap (Koehn 2004).

    It is the only comparison of the model, so that there is nothing to correct its p value for.

    Args:
        model: which.
        counts: of its translations, ``[N, 10]``.
        baseline: of the baseline's translations of the same sentences.
        resamples: how often N sentences are drawn with replacement.
        level: of the interval.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.empty(resamples, dtype=torch.float64)
    for number in range(resamples):
        rows = torch.randint(len(counts), (len(counts),), generator=generator)
        draws[number] = bleu_from_counts(counts[rows]).score - bleu_from_counts(baseline[rows]).score
    tail = (1 - level) / 2
    low, high = draws.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    value = bleu_from_counts(counts).score - bleu_from_counts(baseline).score
    p = bootstrap_p(draws.tolist())
    return BleuDifference(
        model=model, value=value, low=low, high=high, level=level, p=p, corrected=p, resamples=resamples
    )


def translation_curves(records: Sequence[StepRecord], model: ModelKey) -> list[Curve]:
    """Training curves, with cross-entropy (nats) and accuracy per token of the validation pairs."""
    derived = []
    for record in records:
        means = {}
        if record.get("tokens"):
            means = {
                name: None if record.get(part) is None else record[part] / record["tokens"]
                for name, part in (("cross_entropy", "nll"), ("token_accuracy", "correct"))
            }
        derived.append({**record, **means})
    return training_curves(derived, model, quantities=QUANTITIES)
