"""Results of a run of pre-training: the records of ``metrics.json``, and the section of its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from probattn.report import MODEL_TITLES, ModelKey, Results
from probattn.report.markup import Section, plain
from probattn.report.measures import MODEL_STYLES
from probattn.report.record import Probability, Record


class PredictedToken(Record):
    """A token with the space before it, the one it replaced, if any, and the probability of that by model."""

    token: str
    original: str | None = None
    probabilities: Mapping[ModelKey, Probability]


class PretrainingResults(Results):
    """Everything that the report shows; samples have the replacements of the run's own generator."""

    samples: tuple[tuple[PredictedToken, ...], ...] = ()


def sections(results: PretrainingResults) -> Iterator[Section]:
    """The section on samples."""
    if not results.samples:
        return
    models = list(results.samples[0][0].probabilities)
    samples = [
        [
            {
                "model": MODEL_TITLES[model],
                "style": MODEL_STYLES[model],
                "text": Markup("").join(
                    Markup(" " if token.token[:1].isspace() else "") + shaded(token, model)
                    for token in sample
                ),
                "true": sum(
                    token.probabilities[model] > 0.5 for token in sample if token.original is not None
                ),
                "false": sum(token.probabilities[model] > 0.5 for token in sample if token.original is None),
            }
            for model in models
        ]
        for sample in results.samples
    ]
    replaced = [sum(token.original is not None for token in sample) for sample in results.samples]
    context: dict[str, Any] = {"samples": list(zip(samples, replaced, strict=True))}
    yield Section("samples", "Texts", "Which tokens were replaced?", "samples.html", context)


def shaded(token: PredictedToken, model: ModelKey) -> Markup:
    """A token, the darker the more probably it was replaced, and after it the original one where it was."""
    probability = token.probabilities[model]
    words = Markup('<span class="predicted{}" style="--p: {}%" title="replaced: {}">{}</span>').format(
        "" if token.original is None else " replaced",
        round(100 * probability),
        f"{probability:.1%}",
        plain(token.token.strip()),
    )
    if token.original is None:
        return words
    return words + Markup(' <del class="original">{}</del>').format(plain(token.original.strip()))
