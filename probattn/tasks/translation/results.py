"""Results of a run of translation: the records of ``metrics.json``, the measures in them, and its page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from probattn.inference.records import Record as StepRecord
from probattn.metrics.functional import bleu_from_counts
from probattn.report import Curve, Listing, ModelKey, Results, Scores, training_curves
from probattn.report.bootstrap import Columns
from probattn.report.markup import Section
from probattn.report.measures import MODEL_TITLES, MeasureText
from probattn.report.record import Record
from probattn.report.sections import QUANTITIES
from probattn.tasks.measures import number, share

CURVES = ("loss", "cross_entropy", "token_accuracy", "kl_nats", "factors")
"""What a report of translation shows of the records of training, where it is there."""
MEASURES: Mapping[str, MeasureText] = {
    "bleu": share("BLEU", "Of all translations with one reference each, by sacrebleu"),
    "token_accuracy": share(
        "Subwords right", "Share of the references' subwords that are the first choice, given those before"
    ),
    "perplexity": number(
        "Perplexity",
        "Per subword of the references, given those before; to compare networks with the same subwords",
    ),
}


class TranslationSample(Record):
    """A test sentence with its reference and the translation of each model."""

    source: str
    reference: str
    translations: Mapping[ModelKey, str]


class TranslationResults(Results):
    """Everything that the report of a run of translation shows; ``signature`` is sacrebleu's description of BLEU."""

    languages: tuple[str, str] = ("", "")
    signature: str = ""
    samples: tuple[TranslationSample, ...] = ()


def figures(columns: Columns) -> dict[str, float | None]:
    """Measures of some translations and the parts of BLEU, of counts of n-grams ``[N, 10]`` and token measures."""
    score = bleu_from_counts(columns["counts"])
    nll, tokens, correct = (columns[name].double().sum().item() for name in ("nll", "tokens", "correct"))
    return {
        "bleu": score.score / 100,
        "token_accuracy": correct / tokens,
        "perplexity": math.exp(nll / tokens) if nll / tokens < 700 else None,
        **{f"precision{order}": value / 100 for order, value in enumerate(score.precisions, 1)},
        "brevity_penalty": score.brevity_penalty,
        "hypothesis_length": score.hypothesis_length,
        "reference_length": score.reference_length,
        "subwords": tokens,
    }


def bleu_listing(
    scores: Sequence[Scores], seconds: Mapping[ModelKey, float | None], signature: str
) -> Listing:
    """A table of the parts of BLEU and of the time of an update, over the first model's in brackets."""
    first = seconds[scores[0].model]
    rows = []
    for score in scores:
        values, taken = score.values, seconds[score.model]
        time = "" if taken is None else f"{taken:.3g}"
        if taken is not None and first and score is not scores[0]:
            time += f" ({taken / first:.2f}\N{MULTIPLICATION SIGN})"
        precisions = [f"{values[f'precision{order}'] or 0:.1%}" for order in range(1, 5)]
        lengths = [f"{values[name] or 0:,.0f}" for name in ("hypothesis_length", "reference_length")]
        penalty = f"{values['brevity_penalty'] or 0:.3f}"
        rows.append((MODEL_TITLES[score.model], *precisions, penalty, *lengths, time))
    headings = ("1-grams", "2-grams", "3-grams", "4-grams", "Brevity penalty", "Words", "Of the references")
    return Listing(
        title="Parts of BLEU",
        headings=("Attention", *headings, "Seconds of an update"),
        rows=tuple(rows),
        about=f"Shares of the n-grams that are in the reference. BLEU by sacrebleu, {signature}.",
    )


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


def translation_curves(records: Sequence[StepRecord], model: ModelKey) -> list[Curve]:
    """Training curves, with cross-entropy (nats) and accuracy per token of the validation pairs."""
    derived = []
    for record in records:
        means = {}
        if record.get("tokens"):
            means = {
                name: None if record.get(column) is None else record[column] / record["tokens"]
                for name, column in (("cross_entropy", "nll"), ("token_accuracy", "correct"))
            }
        derived.append({**record, **means})
    return training_curves(derived, model, quantities=CURVES)


def sections(results: TranslationResults) -> Iterator[Section]:
    """The section on samples."""
    if results.samples:
        yield Section("samples", "Translations", "Sample translations", "samples.html", {"results": results})


def quantities(results: TranslationResults) -> Mapping[str, tuple[str, str]]:
    """Units of training curves."""
    unit = "per token" if "\n  per: token" in results.run.recipe else "per pair"
    return {**QUANTITIES, "loss": ("Loss", f"nats {unit}")}
