"""The page of a run of translation, and its results for a terminal."""

from __future__ import annotations

from markupsafe import Markup

from probattn.report import (
    LEAST_EFFECT,
    LEAST_EXAMPLES,
    MODEL_LABELS,
    MODEL_TITLES,
    Group,
    Sheet,
    is_reliable,
)
from probattn.report.alignment import alignment_section
from probattn.report.dynamics import dynamics_section
from probattn.report.heads import heads_section
from probattn.report.markup import Section, exact, plain
from probattn.report.measures import MINUS
from probattn.report.page import budget, render_page, run_section
from probattn.report.sections import QUANTITIES, training_section
from probattn.report.sites import posterior_section
from probattn.tasks.translation.results import BleuDifference, TranslationResults, TranslationScores


def render(results: TranslationResults) -> str:
    """The page as text: HTML with its styles and drawings inside; equal records give an equal page."""
    run = results.run
    unit = "per token" if "\n  per: token" in run.recipe else "per pair"
    note = Markup("Every number of this page is in <code>metrics.json</code>, beside it, to the last digit.")
    return render_page(
        [
            _scores_section(results),
            _samples_section(results),
            alignment_section(results.alignment, "sentence pairs"),
            heads_section(results.heads, unit="sentence pairs", measure="token accuracy"),
            posterior_section(results.health),
            dynamics_section(results.dynamics),
            training_section(results.curves, {**QUANTITIES, "loss": ("Loss", f"nats {unit}")}),
            run_section(run, (results.test,), note),
        ],
        kind="translation",
        run=run,
        headline=headline(results),
        opening=opening(results),
        facts=(
            ("Network", plain(run.network)),
            ("Method", plain(run.method)),
            ("Trained on", budget(run, "pairs", each=len(results.scores) > 1)),
            ("Translation", plain(results.search)),
        ),
        package="probattn.tasks.translation",
    )


def _scores_section(results: TranslationResults) -> Section:
    base = results.score("deterministic")
    context = {
        "results": results,
        "gaps": {item.model: exact(item.value, _gap_words(item)) for item in results.differences},
        "seconds": {score.model: _seconds(score, base) for score in results.scores},
        "least": LEAST_EFFECT,
        "least_examples": LEAST_EXAMPLES,
    }
    return Section("compare", "BLEU", "How well does it translate?", "scores.html", context)


def _samples_section(results: TranslationResults) -> Section | None:
    context = {"results": results}
    section = Section("samples", "Translations", "Sample translations", "samples.html", context)
    return section if results.samples else None


def headline(results: TranslationResults) -> str:
    """The main finding in one line."""
    if not results.differences:
        score = results.scores[0]
        return f"{MODEL_TITLES[score.model]} attention reaches BLEU {score.bleu:.1f}"
    difference = results.differences[0]
    name = MODEL_LABELS[difference.model]
    basis = f"(1 seed, {results.test.size:,} {results.test.unit})"
    if not is_reliable(difference, results.test.size, unit=100.0):
        return f"No reliable difference between {name} and deterministic attention {basis}"
    how = "better" if difference.value > 0 else "worse"
    return f"In this run, {name} attention translates {how} than deterministic attention {basis}"


def opening(results: TranslationResults) -> str:
    """The sentence below it."""
    source, target = results.languages
    numbers = " against ".join(f"{score.bleu:.1f}" for score in results.scores[::-1])
    gap = "".join(f": {_gap_words(item)}" for item in results.differences)
    sentence = f"BLEU {numbers}{gap}, on {results.test.size:,} sentences from {source} to {target} ({results.search})."
    return (
        f"{sentence} One seed, one comparison: evidence about this run." if results.differences else sentence
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
