"""Line charts, the curves of many runs, and the reliability diagram."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from probattn.report.record import Curve, Entropy, PAvPUPoint, ReliabilityBin, RiskCoverage
from probattn.report.svg import (
    DIGIT,
    Axis,
    Frame,
    Plot,
    add,
    bottom_axis,
    hint,
    path,
    spread_labels,
    text_of,
    write,
)

LABEL_GAP = 14
"""Least distance between labels, pixels."""

LETTER = 8.0
"""Width of a letter of a label in a wide font (DejaVu Sans), pixels."""

SMALLEST_SHARE = 0.05
"""Risk-coverage curves start here: the error of a handful of examples is too noisy."""

LEAST_PAVPU_RANGE = 0.2
"""An axis of PAvPU spans at least this, so that noise does not look like an effect."""


@dataclass(frozen=True)
class Line:
    """A line through points of the data with the label at its right end, dots at its points or none."""

    label: str
    css: str
    points: tuple[tuple[float, float], ...]
    dots: bool = False


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, title: str) -> Markup:
    """Draws lines with labels at their ends, so that no legend is needed."""
    lines = [line for line in lines if line.points]
    right = max([84, *(LETTER * len(line.label) + 14 for line in lines)])
    left = max([Frame.left, *(DIGIT * len(label) + 10 for _, label in y.ticks)])
    plot = Plot.begin(Frame(right=right, left=left), x, y, title, "; ".join(_spoken(line) for line in lines))
    for line in lines:
        hint(add(plot.root, "path", f"line {line.css}", d=plot(line.points)), line.label)
        for a, b in line.points if line.dots else ():
            dot = add(plot.root, "circle", f"dot {line.css}", cx=plot.across(a), cy=plot.up(b), r=3)
            hint(dot, f"{line.label}: {a:g}, {b:.3g}")
    if lines:
        _end_labels(plot, lines)
    return text_of(plot.root)


def _end_labels(plot: Plot, lines: Sequence[Line]) -> None:
    frame = plot.frame
    ends = [(plot.across(line.points[-1][0]), plot.up(line.points[-1][1])) for line in lines]
    heights = spread_labels([y for _, y in ends], LABEL_GAP, frame.top, frame.height - frame.bottom)
    right = max(x for x, _ in ends)
    for line, (x, y), height in zip(lines, ends, heights, strict=True):
        if abs(height - y) > 2 or right - x > 2:
            add(plot.root, "path", f"leader {line.css}", d=path([(x + 2, y), (right + 7, height)]))
        write(plot.root, right + 10, height + 4, line.label, f"end-label {line.css}")


def _spoken(line: Line) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return f"{line.label}: {start:.3g} at {first:.3g}, {end:.3g} at {last:.3g}"


def entropy_chart(entropies: Sequence[tuple[str, str, Entropy]], num_classes: int, title: str) -> Markup:
    """Cumulative distributions of the predictive entropy, up to that of ``num_classes`` alike or beyond."""
    largest = max(entropy.quantiles[-1] for _, _, entropy in entropies)
    top = math.log(max(num_classes, 1))
    if largest > top + 1e-6 or not top:  # sums or means over several predictions
        top = nice_top(max(largest, 1e-3))
    x = Axis(0, top, "predictive entropy (nats)", ticks(0, top, 4))
    y = Axis(0, 1, "share of inputs at or below", ticks(0, 1, 4, percent=True))
    spoken = "; ".join(f"{label}: mean {entropy.mean:.3f}" for label, _, entropy in entropies)
    plot = Plot.begin(Frame(right=84), x, y, title, spoken)
    for _, css, entropy in entropies:
        levels = [index / (len(entropy.quantiles) - 1) for index in range(len(entropy.quantiles))]
        points = [(0.0, 0.0), *zip(entropy.quantiles, levels, strict=True), (top, 1.0)]
        line = plot([(min(max(value, 0.0), top), level) for value, level in points])
        add(plot.root, "path", f"line {css}", d=line)
    _median_labels(plot, entropies)
    return text_of(plot.root)


def _median_labels(plot: Plot, entropies: Sequence[tuple[str, str, Entropy]]) -> None:
    """Labels to the right of the plot, led from the height where each curve is at four fifths of the axis."""
    frame, at = plot.frame, plot.across.domain[1] * 0.8
    edge = frame.width - frame.right
    heights = [
        plot.up(sum(value <= at for value in entropy.quantiles) / len(entropy.quantiles))
        for _, _, entropy in entropies
    ]
    positions = spread_labels(heights, LABEL_GAP + 14, frame.top + 6, frame.height - frame.bottom - 14)
    for (label, css, entropy), y, position in zip(entropies, heights, positions, strict=True):
        add(plot.root, "path", f"leader {css}", d=path([(plot.across(at), y), (edge + 5, position)]))
        write(plot.root, edge + 9, position + 1, label, f"end-label {css}")
        write(plot.root, edge + 9, position + 14, f"mean {entropy.mean:.2f}", "tick")


def risk_chart(curves: Sequence[tuple[str, str, RiskCoverage]], title: str) -> Markup:
    """Error rate among the most confident share of the examples."""
    lines = []
    for label, css, curve in curves:
        points = zip(curve.coverage, curve.risk, strict=True)
        lines.append(Line(label, css, tuple(point for point in points if point[0] >= SMALLEST_SHARE)))
    top = nice_top(max((b for line in lines for _, b in line.points), default=1.0))
    x = Axis(0, 1, "answered share (most confident first)", ticks(0, 1, 4, percent=True))
    return line_chart(lines, x, Axis(0, top, "errors among them", ticks(0, top, 4, percent=True)), title)


def pavpu_chart(curves: Sequence[tuple[str, str, Sequence[PAvPUPoint]]], title: str) -> Markup:
    """PAvPU against the p-value below which a prediction counts as certain; thresholds are equally spaced."""
    thresholds = sorted({point.threshold for _, _, points in curves for point in points})
    values = [point.value for _, _, points in curves for point in points]
    low, high = _padded(min(values), max(values), minimum=LEAST_PAVPU_RANGE)
    lines = [
        Line(label, css, tuple((float(thresholds.index(p.threshold)), p.value) for p in points), dots=True)
        for label, css, points in curves
    ]
    marks = tuple((float(index), number_word(value)) for index, value in enumerate(thresholds))
    x = Axis(-0.3, len(thresholds) - 0.7, "certain when p is below", marks)
    return line_chart(lines, x, Axis(low, high, "PAvPU", ticks(low, high, 4, percent=True)), title)


def training_chart(curves: Sequence[tuple[str, str, Curve]], title: str, y_title: str) -> Markup:
    """A quantity over optimiser steps."""
    lines = [
        Line(label, css, tuple(zip(map(float, c.steps), c.values, strict=True)), dots=len(c.steps) == 1)
        for label, css, c in curves
    ]
    steps = [a for line in lines for a, _ in line.points] or [0.0, 1.0]
    values = [b for line in lines for _, b in line.points] or [0.0, 1.0]
    low, high = _padded(min(values), max(values), cap=None)
    x = Axis(min(steps), max(steps), "step", ticks(min(steps), max(steps), 4))
    return line_chart(lines, x, Axis(low, high, y_title, ticks(low, high, 4)), title)


def ticks(low: float, high: float, count: int, *, percent: bool = False) -> tuple[tuple[float, str], ...]:
    """Round tick values between two bounds, with labels."""
    step = nice_step((high - low) / count) if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    values = [(first + index) * step for index in range(int((high - first * step) / step + 1e-9) + 1)]
    values = [round(value, 12) + 0.0 for value in values]
    if percent:
        labels = [number_word(round(100 * value, 6)) for value in values]
        labels[-1:] = [f"{label}%" for label in labels[-1:]]
    else:
        labels = [number_word(value) for value in values]
    return tuple(zip(values, labels, strict=True))


def nice_step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) next to a rough step, in ratio."""
    power = 10.0 ** math.floor(math.log10(rough))
    best = min((1.0, 2.0, 5.0, 10.0), key=lambda factor: abs(math.log(factor * power / rough)))
    return round(best * power, 12)


def nice_top(value: float) -> float:
    """A round upper end of an axis that starts at 0, at most 1."""
    step = nice_step(max(value, 0.01) / 4)
    return min(1.0, round(math.ceil(value / step - 1e-9) * step, 12)) or step


def _padded(low: float, high: float, *, cap: float | None = 1.0, minimum: float = 0.0) -> tuple[float, float]:
    room = max((high - low) * 0.12, (minimum - high + low) / 2) or max(abs(high) * 0.1, 0.05)
    bottom, top = low - room, high + room
    if low >= 0:
        bottom = max(bottom, 0.0)
    return bottom, top if cap is None else min(top, cap)


def number_word(value: float) -> str:
    """A tick label: as many digits as distinguish neighbouring ticks."""
    plain = value == 0 or 1e-4 <= abs(value) < 1e9
    words = f"{value:,.6f}".rstrip("0").rstrip(".") if plain else f"{value:.4g}"
    return words.replace("-", "\N{MINUS SIGN}", 1) if value < 0 else words


@dataclass(frozen=True)
class Group:
    """Runs of one condition: ``values[step][run]``, of which None leaves a gap."""

    label: str
    css: str
    steps: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]

    def runs(self) -> list[list[tuple[float, float]]]:
        """The points of each run."""
        return [
            [(float(s), value) for s, value in zip(self.steps, column, strict=True) if value is not None]
            for column in zip(*self.values, strict=True)
        ]

    def middle(self) -> list[tuple[float, float]]:
        """Medians over the runs that have a value, by step."""
        rows = [[value for value in row if value is not None] for row in self.values]
        return [(float(s), float(median(row))) for s, row in zip(self.steps, rows, strict=True) if row]


def runs_chart(groups: Sequence[Group], title: str, y_title: str, *, share: bool = True) -> Markup:
    """Draws groups of runs over steps."""
    said = "; ".join(
        f"{group.label}: median {points[-1][1]:.3g} at step {points[-1][0]:g}"
        for group in groups
        if (points := group.middle())
    )
    last = float(max(step for group in groups for step in group.steps)) or 1.0
    values = [value for group in groups for run in group.runs() for _, value in run] or [0.0]
    low, high = (0.0, 1.0) if share else (min(0.0, *values), max(0.0, *values) or 1.0)
    room = 0.0 if share else 0.05 * (high - low)
    x = Axis(0, last, "step", ticks(0, last, 4))
    y = Axis(low - room, high + room, y_title, ticks(low, high, 4, percent=share))
    plot = Plot.begin(Frame(), x, y, title, said)
    for group in groups:
        for index, points in enumerate(group.runs()):
            hint(add(plot.root, "path", f"thin {group.css}", d=plot(points)), f"{group.label}, run {index}")
    for group in groups:
        hint(add(plot.root, "path", f"middle {group.css}", d=plot(group.middle())), f"{group.label}, median")
    return text_of(plot.root)


BARS = 40
"""Height of the histogram below the diagram, pixels."""


def reliability_chart(
    bins: Sequence[ReliabilityBin],
    floor: float,
    css: str,
    title: str,
    anchors: Mapping[float, str] | None = None,
) -> Markup:
    """Accuracy by confidence with 95% intervals, gaps shaded, above shares of examples; points lead to ``anchors``."""
    frame = Frame(height=330, bottom=40 + BARS + 26)
    spoken = "; ".join(
        f"confidence {b.confidence:.2f}: accuracy {b.accuracy:.2f} ({b.count} examples)" for b in bins
    )
    marks = ticks(floor, 1, 5, percent=True)
    plot = Plot.begin(frame, Axis(floor, 1, "", ()), Axis(floor, 1, "accuracy", marks), title, spoken)
    for b in bins:
        corners = [(b.low, b.low), (b.high, b.high), (b.high, b.accuracy), (b.low, b.accuracy)]
        add(plot.root, "path", f"gap {css}", d=plot(corners) + "Z")
    add(plot.root, "path", "diagonal", d=plot([(floor, floor), (1, 1)]))
    for b in bins:
        _point(plot, b, css, (anchors or {}).get(b.low))
    _histogram(plot, bins, css)
    bottom_axis(plot.root, frame, plot.across, Axis(floor, 1, "confidence", marks), frame.height - 40)
    return text_of(plot.root)


def common_floor(groups: Sequence[Sequence[ReliabilityBin]]) -> float:
    """Start of the axes of diagrams side by side: the tenth below everything drawn."""
    drawn = [value for bins in groups for b in bins for value in (b.low, b.accuracy_low)]
    return math.floor(10 * min(drawn, default=0.0) + 1e-9) / 10


def _point(plot: Plot, b: ReliabilityBin, css: str, anchor: str | None) -> None:
    root, across, up = plot.root, plot.across, plot.up
    x, y = across(b.confidence), up(b.accuracy)
    add(root, "line", f"step {css}", x1=across(b.low), x2=across(b.high), y1=y, y2=y)
    add(root, "line", f"interval {css}", x1=x, x2=x, y1=up(b.accuracy_low), y2=up(b.accuracy_high))
    words = (
        f"{b.count} examples, mean confidence {b.confidence:.1%}, accuracy {b.accuracy:.1%} "
        f"(95% interval {b.accuracy_low:.1%} to {b.accuracy_high:.1%})"
    )
    if anchor is not None:
        root = add(root, "a", href=f"#{anchor}")
        words += "; its mistakes are listed below"
    hint(add(root, "circle", f"dot {css}", cx=x, cy=y, r=4 if anchor is None else 5.5), words)


def _histogram(plot: Plot, bins: Sequence[ReliabilityBin], css: str) -> None:
    total, largest = sum(b.count for b in bins), max((b.count for b in bins), default=1)
    root, base = plot.root, plot.frame.height - 40
    for b in bins:
        height = BARS * b.count / largest
        left, right = plot.across(b.low) + 1, plot.across(b.high) - 1
        bar = add(root, "rect", f"bar {css}", x=left, y=base - height, width=right - left, height=height)
        hint(bar, f"{b.count} of {total} examples")
        write(root, (left + right) / 2, base - height - 4, f"{b.count / total:.0%}", "tick small", "middle")
