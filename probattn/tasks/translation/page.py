"""The page of a run of translation, and its results for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from probattn.inference.report import (
    LEAST_EFFECT,
    LEAST_EXAMPLES,
    MODEL_LABELS,
    MODEL_TITLES,
    Group,
    Sheet,
    is_reliable,
    printable,
)
from probattn.inference.report.charts.svg import isolated
from probattn.inference.report.dynamics import dynamics_view
from probattn.inference.report.heads import heads_view
from probattn.inference.report.markup import exact
from probattn.inference.report.measures import MINUS, MODEL_STYLES
from probattn.inference.report.page import colour_channels, make_environment, run_context
from probattn.inference.report.sections import QUANTITIES, training_figures
from probattn.tasks.translation.results import BleuDifference, TranslationResults, TranslationScores

SECTIONS = (
    ("compare", "BLEU"),
    ("samples", "Translations"),
    ("heads", "Heads"),
    ("dynamics", "Dynamics"),
    ("training", "Training"),
    ("run", "What was run"),
)


@dataclass(frozen=True)
class Row:
    """One model of the table, its numbers ready for the template."""

    title: str
    style: str
    bleu: Markup
    gap: Markup
    precisions: Markup
    brevity: Markup
    perplexity: Markup
    accuracy: Markup
    seconds: Markup


@dataclass(frozen=True)
class Sample:
    """A sentence with its reference and its translations: title, style and words of each."""

    source: str
    reference: str
    translations: tuple[tuple[str, str, str], ...]


def render(results: TranslationResults) -> str:
    """The page as text: HTML with its styles and drawings inside; equal records give an equal page."""
    environment = make_environment("probattn.tasks.translation")
    samples = tuple(
        Sample(
            printable(item.source),
            printable(item.reference),
            tuple(
                (
                    MODEL_TITLES[score.model],
                    MODEL_STYLES[score.model],
                    printable(item.translations[score.model]),
                )
                for score in results.scores
                if score.model in item.translations
            ),
        )
        for item in results.samples
    )
    unit = "per token" if "\n  per: token" in results.run.recipe else "per pair"
    quantities = {**QUANTITIES, "loss": ("Loss", f"nats {unit}")}
    training = training_figures(results.curves, quantities)
    dynamics = dynamics_view(results.dynamics)
    heads = heads_view(results.heads, unit="sentence pairs", measure="token accuracy")
    shown = {
        "compare": True,
        "samples": samples,
        "heads": heads,
        "dynamics": dynamics,
        "training": training,
        "run": True,
    }
    context: dict[str, Any] = run_context(environment, results.run, (results.test,)) | {
        "results": results,
        "plain_title": f"{isolated(results.run.name)}: translation report",
        "headline": headline(results),
        "opening": opening(results),
        "least": LEAST_EFFECT,
        "least_examples": LEAST_EXAMPLES,
        "rows": _rows(results),
        "samples": samples,
        "heads": heads,
        "dynamics": dynamics,
        "training": training,
        "ramps": colour_channels(),
        "minus": MINUS,
        "contents": [(name, words) for name, words in SECTIONS if shown[name]],
    }
    return environment.get_template("page.html").render(context)


def headline(results: TranslationResults) -> str:
    """What was found, in one line."""
    if not results.differences:
        score = results.scores[0]
        return f"{MODEL_TITLES[score.model]} attention reaches BLEU {score.bleu:.1f}"
    found = results.differences[0]
    name = MODEL_LABELS[found.model]
    basis = f"(1 seed, {results.test.size:,} {results.test.unit})"
    if not is_reliable(found, results.test.size, unit=100.0):
        return f"No reliable difference between {name} and deterministic attention {basis}"
    how = "better" if found.value > 0 else "worse"
    return f"In this run, {name} attention translates {how} than deterministic attention {basis}"


def opening(results: TranslationResults) -> str:
    """The sentence below it."""
    source, target = results.languages
    numbers = " against ".join(f"{score.bleu:.1f}" for score in results.scores[::-1])
    gap = "".join(f": {_gap_words(item)}" for item in results.differences)
    told = f"BLEU {numbers}{gap}, on {results.test.size:,} sentences from {source} to {target} ({results.search})."
    return f"{told} One seed, one comparison: evidence about this run." if results.differences else told


def _rows(results: TranslationResults) -> tuple[Row, ...]:
    base = results.score("deterministic")
    return tuple(_row(score, base, results.differences) for score in results.scores)


def _row(
    score: TranslationScores, base: TranslationScores | None, differences: Sequence[BleuDifference]
) -> Row:
    gap = next((item for item in differences if item.model == score.model), None)
    precisions = " / ".join(f"{value:.1f}" for value in score.precisions)
    return Row(
        title=MODEL_TITLES[score.model],
        style=MODEL_STYLES[score.model],
        bleu=exact(score.bleu, f"{score.bleu:.2f}"),
        gap=Markup("\N{EN DASH}") if gap is None else exact(gap.value, _gap_words(gap)),
        precisions=Markup(precisions),
        brevity=exact(score.brevity_penalty, f"{score.brevity_penalty:.3f}"),
        perplexity=exact(score.perplexity, f"{score.perplexity or 0:.2f}"),
        accuracy=exact(score.token_accuracy, f"{100 * score.token_accuracy:.1f}%"),
        seconds=_seconds(score, base),
    )


def _gap_words(gap: BleuDifference) -> str:
    low, high = _signed(gap.low), _signed(gap.high)
    return f"{_signed(gap.value)} ({low} to {high})"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def _seconds(score: TranslationScores, base: TranslationScores | None) -> Markup:
    """Time of an update, and over the baseline's."""
    if score.step_seconds is None:
        return exact(None, "")
    words = f"{score.step_seconds:.3g} s"
    if base is not None and base is not score and base.step_seconds:
        words += f" ({score.step_seconds / base.step_seconds:.2f}\N{MULTIPLICATION SIGN})"
    return exact(score.step_seconds, words)


def translation_table(results: TranslationResults) -> Sheet:
    """BLEU, perplexity and token accuracy of each model, and what separates it from the deterministic one."""
    gaps = {
        item.model: (f"{item.value:+.2f}", f"[{item.low:+.2f}, {item.high:+.2f}]")
        for item in results.differences
    }
    rows = tuple(
        (
            MODEL_TITLES[score.model],
            f"{score.bleu:.2f}",
            *gaps.get(score.model, ("", "")),
            "" if score.perplexity is None else f"{score.perplexity:.2f}",
            f"{score.token_accuracy:.3f}",
            "" if score.step_seconds is None else f"{score.step_seconds:.3f}",
        )
        for score in results.scores
    )
    level = results.differences[0].level if results.differences else 0.95
    headings = (
        "attention",
        "BLEU",
        "difference",
        f"{level:.0%} interval",
        "perplexity",
        "subwords right",
        "s an update",
    )
    return Sheet(headings, (Group("", rows),), notes=(f"{headline(results)}.",))
