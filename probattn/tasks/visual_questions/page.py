"""The page of a run of visual questions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from markupsafe import Markup

from probattn.report import MODEL_TITLES
from probattn.report.markup import Section, heatmap
from probattn.report.measures import MODEL_STYLES
from probattn.tasks.visual_questions.drawing import overlay
from probattn.tasks.visual_questions.results import VisualQuestionResults, VisualQuestionSample

SMALL = 60.0
"""Height of the overlays of single words."""


class Drawn(NamedTuple):
    """A drawing with what stands below it."""

    words: str
    svg: Markup


def sections(results: VisualQuestionResults) -> Iterator[Section]:
    """The section on samples."""
    if not results.samples:
        return
    context = {
        "samples": [shown(sample) for sample in results.samples],
        "latent": any(sample.region_weights.spread for sample in results.samples),
        "shares": any(sample.region_shares for sample in results.samples),
        "draws": results.run.num_samples,
    }
    yield Section("samples", "Questions", "Attention over the image", "samples.html", context)


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
    """The image, and its regions' weights in the answer."""
    weights = sample.region_weights
    found = [
        Drawn("the image", overlay(sample, None, f"Image {sample.image}")),
        Drawn(
            "weight in the answer", overlay(sample, weights.mean[0], "Weight of each region in the answer")
        ),
    ]
    if weights.spread:
        words = "its standard deviation"
        found.append(Drawn(words, overlay(sample, weights.spread[0], "Standard deviation of the weight")))
    if sample.region_shares:
        words = f"share of the variance, {sum(sample.region_shares):.0%} in regions"
        found.append(
            Drawn(words, overlay(sample, sample.region_shares, "Share of the variance of the answer"))
        )
    return found


def _words(sample: VisualQuestionSample) -> list[dict[str, Any]]:
    """For each word the attention of regions to it, and its own weight."""
    parts = {"weight": sample.region_map.mean, "standard deviation": sample.region_map.spread}
    tops = {name: max(chain.from_iterable(part), default=0.0) for name, part in parts.items()}
    weights = sample.word_weights
    return [
        {
            "word": word,
            "overlays": [
                overlay(sample, [row[index] for row in part], f"{name}, {word}", top=tops[name], size=SMALL)
                for name, part in parts.items()
                if part
            ],
            "weight": weights.mean[0][index],
            "spread": weights.spread[0][index] if weights.spread else None,
            "share": sample.word_shares[index] if sample.word_shares else None,
        }
        for index, word in enumerate(sample.words)
    ]


def _maps(sample: VisualQuestionSample) -> list[Drawn]:
    """Words to words: weights, and their standard deviation over the mean."""
    found = sample.word_map
    drawings = [("weights of words to words", found.mean, "mean")]
    if found.spread:
        ratio = tuple(
            tuple(spread / mean if mean else 0.0 for mean, spread in zip(*both, strict=True))
            for both in zip(found.mean, found.spread, strict=True)
        )
        drawings.append(("standard deviation / mean", ratio, "ratio"))
    return [
        Drawn(
            words, heatmap(sample.words, sample.words, values, max(chain.from_iterable(values)), ramp, words)
        )
        for words, values, ramp in drawings
    ]
