"""The page of a run of visual questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from probattn.inference.report import MODEL_TITLES
from probattn.inference.report.charts.heatmap import heatmap
from probattn.inference.report.heads import heads_section
from probattn.inference.report.markup import Section
from probattn.inference.report.measures import MODEL_STYLES
from probattn.tasks.fine_tuning.page import render as render_measured
from probattn.tasks.visual_questions.drawing import plain_picture, veiled
from probattn.tasks.visual_questions.measures import MEASURES
from probattn.tasks.visual_questions.results import VisualQuestionResults, VisualQuestionSample

SMALL = 60.0
"""Height of the pictures of single words."""


class Drawn(NamedTuple):
    """A drawing with what stands below it."""

    words: str
    svg: Markup


def render(results: VisualQuestionResults) -> str:
    """The page as text: HTML with its styles and drawings inside; equal records give an equal page."""
    more = [
        _samples_section(results),
        heads_section(results.heads, unit="questions", measure="accuracy"),
    ]
    return render_measured(
        results, MEASURES, "questions", more=more, package="probattn.tasks.visual_questions"
    )


def _samples_section(results: VisualQuestionResults) -> Section | None:
    if not results.samples:
        return None
    context = {
        "samples": [shown(sample) for sample in results.samples],
        "latent": any(sample.region_weights.spread for sample in results.samples),
        "shares": any(sample.region_shares for sample in results.samples),
        "draws": results.run.num_samples,
    }
    return Section("samples", "Questions", "Where the network looks", "samples.html", context)


def shown(sample: VisualQuestionSample) -> dict[str, Any]:
    """A sample as the template shows it."""
    return {
        "question": sample.question,
        "image": sample.image,
        "truth": ", ".join(sample.truth),
        "answers": [
            {"style": MODEL_STYLES[model], "model": MODEL_TITLES[model], "given": given}
            for model, given in sample.answers.items()
        ],
        "whole": _whole(sample),
        "words": _words(sample),
        "maps": _maps(sample),
    }


def _whole(sample: VisualQuestionSample) -> list[Drawn]:
    """The image, and where the answer looks in it."""
    weights = sample.region_weights
    found = [
        Drawn("the image", plain_picture(sample)),
        Drawn("weight in the answer", veiled(sample, weights.mean, "Weight of each region in the answer")),
    ]
    if weights.spread:
        found.append(
            Drawn(
                "its standard deviation", veiled(sample, weights.spread, "Standard deviation of the weight")
            )
        )
    if sample.region_shares:
        total = f"{sum(sample.region_shares):.0%}"
        words = f"share of the uncertainty, {total} in regions"
        found.append(
            Drawn(words, veiled(sample, sample.region_shares, "Share of the variance of the answer"))
        )
    return found


def _words(sample: VisualQuestionSample) -> list[dict[str, Any]]:
    """Which regions each word guides, and how much each word counts."""
    tops = [max(part, default=0.0) for part in (sample.region_map.mean, sample.region_map.spread)]
    rows = []
    for place, word in enumerate(sample.words):
        parts = [("weight", sample.region_map.mean), ("standard deviation", sample.region_map.spread)]
        pictures = [
            veiled(sample, column(part, place, len(sample.words)), f"{name}, {word}", top=top, size=SMALL)
            for (name, part), top in zip(parts, tops, strict=True)
            if part
        ]
        rows.append(
            {
                "word": word,
                "pictures": pictures,
                "weight": sample.word_weights.mean[place],
                "spread": sample.word_weights.spread[place] if sample.word_weights.spread else None,
                "share": sample.word_shares[place] if sample.word_shares else None,
            }
        )
    return rows


def _maps(sample: VisualQuestionSample) -> list[Drawn]:
    """Words to words: weights, and their standard deviation over the mean."""
    found = sample.word_map
    drawings = [("weights of words to words", found.mean, "mean")]
    if found.spread:
        ratio = tuple(
            spread / mean if mean else 0.0 for mean, spread in zip(found.mean, found.spread, strict=True)
        )
        drawings.append(("standard deviation / mean", ratio, "ratio"))
    return [
        Drawn(
            words,
            heatmap(sample.words, sample.words, rows(values, len(sample.words)), max(values), ramp, words),
        )
        for words, values, ramp in drawings
    ]


def column(values: Sequence[float], place: int, width: int) -> Sequence[float]:
    """One column of values that stand row by row.

    Example:
        >>> column((1, 2, 3, 4), 1, 2)
        (2, 4)
    """
    return values[place::width]


def rows(values: Sequence[float], width: int) -> list[Sequence[float]]:
    """Rows of values that stand row by row.

    Example:
        >>> rows((1, 2, 3, 4), 2)
        [(1, 2), (3, 4)]
    """
    return [values[start : start + width] for start in range(0, len(values), width)]
