"""Courses of many runs: a thin line for each, a thick one for their median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from probattn.inference.report.charts.lines import ticks
from probattn.inference.report.charts.svg import Axis, Frame, add, axes, drawing, hint, path, text_of


@dataclass(frozen=True)
class Group:
    """Runs of one condition.

    Attributes:
        label: its name.
        css: class that gives the colour.
        steps: where it was measured.
        values: ``[step][run]``; None leaves a gap.
        single: whether to draw each run besides their median.
    """

    label: str
    css: str
    steps: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]
    single: bool = True

    def middle(self) -> list[tuple[float, float]]:
        """Medians over the runs that have a value, by step."""
        found = []
        for step, row in zip(self.steps, self.values, strict=True):
            there = [value for value in row if value is not None]
            if there:
                found.append((float(step), float(median(there))))
        return found

    def runs(self) -> list[list[tuple[float, float]]]:
        """The points of each run."""
        return [
            [(float(s), value) for s, value in zip(self.steps, column, strict=True) if value is not None]
            for column in zip(*self.values, strict=True)
        ]


def runs_chart(groups: Sequence[Group], title: str, y_title: str, *, share: bool = True) -> str:
    """Draws groups of runs over steps.

    Args:
        groups: what to draw.
        title: what a screen reader says.
        y_title: what stands above the vertical axis.
        share: whether values are shares, on an axis from 0 to 1.

    Returns:
        An ``<svg>`` element.

    Example:
        >>> drawn = runs_chart([Group("a", "bay", (0, 10), ((0.0, 0.1), (1.0, 0.5)))], "Accuracy", "share")
        >>> drawn.count("<path")
        3
    """
    frame = Frame(top=26)
    said = "; ".join(
        f"{group.label}: median {points[-1][1]:.3g} at step {points[-1][0]:g}"
        for group in groups
        if (points := group.middle())
    )
    root = drawing(frame.width, frame.height, title, said)
    last = float(max(step for group in groups for step in group.steps)) or 1.0
    shown = [row for group in groups for row in (group.values if group.single else _medians(group))]
    values = [value for row in shown for value in row if value is not None] or [0.0]
    low, high = (0.0, 1.0) if share else (min(0.0, *values), max(0.0, *values) or 1.0)
    room = 0.0 if share else 0.05 * (high - low)
    x = Axis(0, last, "step", ticks(0, last, 4))
    y = Axis(low - room, high + room, y_title, ticks(low, high, 4, percent=share))
    across, up = axes(root, frame, x, y)
    for group in groups:
        for index, points in enumerate(group.runs() if group.single else []):
            drawn = add(root, "path", f"thin {group.css}", d=path((across(a), up(b)) for a, b in points))
            hint(drawn, f"{group.label}, run {index}")
    for group in groups:
        middle = [(across(a), up(b)) for a, b in group.middle()]
        hint(add(root, "path", f"middle {group.css}", d=path(middle)), f"{group.label}, median")
    return text_of(root)


def _medians(group: Group) -> list[tuple[float, ...]]:
    return [(value,) for _, value in group.middle()]
