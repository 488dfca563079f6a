"""The page of a run of visual questions, with attention drawn over images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from markupsafe import Markup

from probattn.inference.explanation import FLOOR
from probattn.report import MODEL_TITLES
from probattn.report.attention import strip
from probattn.report.markup import Section, heatmap
from probattn.report.measures import MODEL_STYLES
from probattn.report.svg import add, drawing, hint, text_of, write
from probattn.tasks.visual_questions.results import PartEffect, VisualQuestionResults, VisualQuestionSample

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
        "draws": results.run.num_samples,
    }
    yield Section("samples", "Questions", "Attention over the image", "samples.html", context)


def shown(sample: VisualQuestionSample) -> dict[str, Any]:
    """A sample as the template shows it."""
    received = [sum(column) for column in zip(*sample.word_map.mean, strict=True)]
    hints = [
        f"{word}: summed attention {total:.2f}" for word, total in zip(sample.words, received, strict=True)
    ]
    return {
        "question": sample.question,
        "strip": strip(sample.words, received, hints, None),
        "image": sample.image,
        "truth": ", ".join(sample.truth),
        "answers": [
            {"style": MODEL_STYLES[model], "model": MODEL_TITLES[model], "given": answers}
            for model, answers in sample.answers.items()
        ],
        "whole": _whole(sample),
        "words": _words(sample),
        "maps": _maps(sample),
    }


def _whole(sample: VisualQuestionSample) -> list[Drawn]:
    """The image, and its regions' weights in the answer."""
    weights = sample.region_weights
    drawings = [
        Drawn("the image", overlay(sample, None, f"Image {sample.image}")),
        Drawn(
            "weight in the answer", overlay(sample, weights.mean[0], "Weight of each region in the answer")
        ),
    ]
    if weights.spread:
        words = "its standard deviation"
        drawings.append(Drawn(words, overlay(sample, weights.spread[0], "Standard deviation of the weight")))
    if sample.region_effects:
        changes, words = [effect.change for effect in sample.region_effects], "for and against the answer"
        points = ", points" if any(map(_side, sample.region_effects)) else ": none by a point"
        drawings.append(Drawn(words + points, overlay(sample, changes, f"Regions {words}", signed=True)))
    return drawings


def _words(sample: VisualQuestionSample) -> list[dict[str, Any]]:
    """For each word the attention of regions to it, and its own weight."""
    maps = {"weight": sample.region_map.mean, "standard deviation": sample.region_map.spread}
    tops = {name: max(chain.from_iterable(rows), default=0.0) for name, rows in maps.items()}
    weights, effects = sample.word_weights, sample.word_effects or [None] * len(sample.words)
    return [
        {
            "word": word,
            "overlays": [
                overlay(sample, [row[index] for row in rows], f"{name}, {word}", top=tops[name], size=SMALL)
                for name, rows in maps.items()
                if rows
            ],
            "weight": weights.mean[0][index],
            "spread": weights.spread[0][index] if weights.spread else None,
            "effect": effects[index],
            "side": _side(effects[index]),
        }
        for index, word in enumerate(sample.words)
    ]


def _side(effect: PartEffect | None) -> str:
    """Whether a part speaks for the answer or against it, by a point of probability or more."""
    if effect is None or abs(effect.change) < FLOOR:
        return ""
    return "for" if effect.change > 0 else "against"


def _maps(sample: VisualQuestionSample) -> list[Drawn]:
    """Words to words: weights, and their standard deviation over the mean."""
    word_map = sample.word_map
    drawings = [("weights of words to words", word_map.mean, "mean")]
    if word_map.spread:
        ratio = tuple(
            tuple(spread / mean if mean else 0.0 for mean, spread in zip(*both, strict=True))
            for both in zip(word_map.mean, word_map.spread, strict=True)
        )
        drawings.append(("standard deviation / mean", ratio, "ratio"))
    return [
        Drawn(
            words, heatmap(sample.words, sample.words, values, max(chain.from_iterable(values)), ramp, words)
        )
        for words, values, ramp in drawings
    ]


SHADE = 0.88
"""Opacity of the overlay over a region of weight 0."""


def boxes_of(sample: VisualQuestionSample) -> Sequence[tuple[float, float, float, float]]:
    """The boxes of the regions; cells of a square, in order, where they are not known."""
    if sample.boxes:
        return sample.boxes
    count = len(sample.region_map.mean)
    side = math.ceil(math.sqrt(count))
    cells = [divmod(index, side) for index in range(count)]
    return [(column / side, row / side, (column + 1) / side, (row + 1) / side) for row, column in cells]


def overlay(
    sample: VisualQuestionSample,
    values: Sequence[float] | None,
    title: str,
    *,
    top: float | None = None,
    size: float = 144,
    signed: bool = False,
) -> Markup:
    """An image under shades, the darker the smaller a value; ``top`` has none. Signed ones have color, sign, points."""
    root = drawing(size, size, title, css="chart overlaid")
    if sample.image_url:
        image = add(root, "image", "image", x=0, y=0, width=size, height=size)
        image.set("href", sample.image_url)
        image.set("preserveAspectRatio", "none")
    else:
        add(root, "rect", "blank", x=0, y=0, width=size, height=size)
    if values is None:
        return text_of(root)
    maximum = max(map(abs, values), default=0.0) if top is None else top
    for number, ((left, up, right, down), value) in enumerate(zip(boxes_of(sample), values, strict=True)):
        share = min(1.0, abs(value) / maximum) if maximum else 0.0
        share = 0.0 if signed and abs(value) < FLOOR else share
        box = {
            "x": size * left,
            "y": size * up,
            "width": max(0.0, size * (right - left)),
            "height": max(0.0, size * (down - up)),
        }
        shade = add(root, "rect", ("for" if value > 0 else "against") if signed else "shade", **box)
        shade.set("fill-opacity", f"{SHADE * (share if signed else 1 - share):.3f}")
        hint(shade, f"region {number}: {value:{'+' * signed}.4f}")
        if signed and share:
            x, y = size * (left + right) / 2, size * (up + down) / 2 + 4
            write(root, x, y, f"{100 * value:+.0f}", "points", "middle")
    return text_of(root)
