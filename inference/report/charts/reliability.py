"""The reliability diagram: how often a network is right when it says how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from probattn.inference.report.charts.lines import ticks
from probattn.inference.report.charts.svg import (
    Axis,
    Frame,
    Scale,
    add,
    axes,
    bottom_axis,
    drawing,
    hint,
    path,
    text_of,
    write,
)
from probattn.inference.report.measurements import ReliabilityBin

BARS = 40
"""Height of the histogram below the diagram, pixels."""


def reliability_chart(bins: Sequence[ReliabilityBin], floor: float, css: str, title: str) -> str:
    """Accuracy against confidence by bin, with 95% intervals; below, the share of examples in each bin.

    A point under the diagonal is an overconfident bin; the gap is shaded.

    Args:
        bins: the bins that hold examples.
        floor: where both axes start.
        css: class that gives the colour.
        title: what a screen reader says.

    Returns:
        An ``<svg>`` element.
    """
    frame = Frame(height=330, top=26, bottom=40 + BARS + 26)
    spoken = "; ".join(
        f"confidence {b.confidence:.2f}: accuracy {b.accuracy:.2f} ({b.count} examples)" for b in bins
    )
    root = drawing(frame.width, frame.height, title, spoken)
    marks = ticks(floor, 1, 5, percent=True)
    across, up = axes(root, frame, Axis(floor, 1, "", ()), Axis(floor, 1, "accuracy", marks))
    for b in bins:
        add(root, "path", f"gap {css}", d=_gap(b, across, up))
    add(root, "path", "diagonal", d=path([(across(floor), up(floor)), (across(1), up(1))]))
    for b in bins:
        _point(root, b, css, across, up)
    _histogram(root, frame, bins, css, across)
    bottom_axis(root, frame, across, Axis(floor, 1, "confidence", marks), frame.height - 40)
    return text_of(root)


def common_floor(groups: Sequence[Sequence[ReliabilityBin]]) -> float:
    """Where the axes of diagrams side by side start: the tenth below everything drawn."""
    drawn = [value for bins in groups for b in bins for value in (b.low, b.accuracy_low)]
    return math.floor(10 * min(drawn, default=0.0) + 1e-9) / 10


def _gap(b: ReliabilityBin, across: Scale, up: Scale) -> str:
    left, right = across(b.low), across(b.high)
    return (
        path([(left, up(b.low)), (right, up(b.high)), (right, up(b.accuracy)), (left, up(b.accuracy))]) + "Z"
    )


def _point(root: ET.Element, b: ReliabilityBin, css: str, across: Scale, up: Scale) -> None:
    x, y = across(b.confidence), up(b.accuracy)
    add(root, "line", f"step {css}", x1=across(b.low), x2=across(b.high), y1=y, y2=y)
    add(root, "line", f"interval {css}", x1=x, x2=x, y1=up(b.accuracy_low), y2=up(b.accuracy_high))
    words = (
        f"{b.count} examples, mean confidence {b.confidence:.1%}, accuracy {b.accuracy:.1%} "
        f"(95% interval {b.accuracy_low:.1%} to {b.accuracy_high:.1%})"
    )
    hint(add(root, "circle", f"dot {css}", cx=x, cy=y, r=4), words)


def _histogram(
    root: ET.Element, frame: Frame, bins: Sequence[ReliabilityBin], css: str, across: Scale
) -> None:
    total, most = sum(b.count for b in bins), max((b.count for b in bins), default=1)
    base = frame.height - 40
    for b in bins:
        height = BARS * b.count / most
        left, right = across(b.low) + 1, across(b.high) - 1
        bar = add(root, "rect", f"bar {css}", x=left, y=base - height, width=right - left, height=height)
        hint(bar, f"{b.count} of {total} examples")
        write(root, (left + right) / 2, base - height - 4, f"{b.count / total:.0%}", "tick small", "middle")
