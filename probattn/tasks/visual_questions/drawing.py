"""Attention drawn over an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from probattn.report.svg import add, drawing, hint, text_of
from probattn.tasks.visual_questions.results import VisualQuestionSample

SHADE = 0.88
"""Opacity of the overlay over a region of weight 0."""


def boxes_of(sample: VisualQuestionSample) -> Sequence[tuple[float, float, float, float]]:
    """The boxes of the regions; cells of a square, in order, where they are not known."""
    if sample.boxes:
        return sample.boxes
    count = len(sample.region_map.mean)
    side = math.ceil(math.sqrt(count))
    places = [divmod(index, side) for index in range(count)]
    return [(column / side, row / side, (column + 1) / side, (row + 1) / side) for row, column in places]


def overlay(
    sample: VisualQuestionSample,
    values: Sequence[float] | None,
    title: str,
    *,
    top: float | None = None,
    size: float = 144,
) -> Markup:
    """An image under an overlay that is the darker over a region the smaller its value.

    Args:
        sample: with the image.
        values: one of each region; None for the image without an overlay.
        title: what is shown.
        top: the value without shade; None for the largest.
        size: height and width.
    """
    root = drawing(size, size, title, css="chart overlaid")
    if sample.image_url:
        image = add(root, "image", "image", x=0, y=0, width=size, height=size)
        image.set("href", sample.image_url)
        image.set("preserveAspectRatio", "none")
    else:
        add(root, "rect", "blank", x=0, y=0, width=size, height=size)
    if values is None:
        return text_of(root)
    most = max(values, default=0.0) if top is None else top
    for number, ((left, up, right, down), value) in enumerate(zip(boxes_of(sample), values, strict=True)):
        share = min(1.0, value / most) if most else 0.0
        box = {
            "x": size * left,
            "y": size * up,
            "width": max(0.0, size * (right - left)),
            "height": max(0.0, size * (down - up)),
        }
        shade = add(root, "rect", "shade", **box)
        shade.set("fill-opacity", f"{SHADE * (1 - share):.3f}")
        hint(shade, f"region {number}: {value:.4f}")
    return text_of(root)
