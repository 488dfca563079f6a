"""Attention drawn over an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from probattn.inference.report.charts.svg import add, drawing, hint, text_of
from probattn.tasks.visual_questions.results import VisualQuestionSample

VEIL = 0.88
"""Opacity over a region that nothing looks at."""


def boxes_of(sample: VisualQuestionSample) -> Sequence[tuple[float, float, float, float]]:
    """The boxes of the regions; cells of a square, in order, where they are not known."""
    count = len(sample.region_weights.mean)
    if len(sample.boxes) == count:
        return sample.boxes
    side = math.ceil(math.sqrt(count))
    places = [divmod(place, side) for place in range(count)]
    return [(column / side, row / side, (column + 1) / side, (row + 1) / side) for row, column in places]


def veiled(
    sample: VisualQuestionSample,
    values: Sequence[float],
    title: str,
    *,
    top: float | None = None,
    size: float = 144,
) -> Markup:
    """An image whose regions are the less veiled the larger their value.

    Args:
        sample: with the image.
        values: one of each region.
        title: what is shown.
        top: the value without a veil; None for the largest.
        size: height and width.
    """
    most = max(values, default=0.0) if top is None else top
    root = drawing(size, size, title, css="chart veiled")
    if sample.picture:
        picture = add(root, "image", "picture", x=0, y=0, width=size, height=size)
        picture.set("href", sample.picture)
        picture.set("preserveAspectRatio", "none")
    else:
        add(root, "rect", "blank", x=0, y=0, width=size, height=size)
    for number, ((left, up, right, down), value) in enumerate(zip(boxes_of(sample), values, strict=True)):
        share = min(1.0, value / most) if most else 0.0
        box = {
            "x": size * left,
            "y": size * up,
            "width": max(0.0, size * (right - left)),
            "height": max(0.0, size * (down - up)),
        }
        veil = add(root, "rect", "veil", **box)
        veil.set("fill-opacity", f"{VEIL * (1 - share):.3f}")
        hint(veil, f"region {number}: {value:.4f}")
    return text_of(root)


def plain_picture(sample: VisualQuestionSample, size: float = 144) -> Markup:
    """The image as it is."""
    ones = [1.0] * len(sample.region_weights.mean)
    return veiled(sample, ones, f"Image {sample.image}", top=1.0, size=size)
