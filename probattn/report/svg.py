"""The little SVG that charts are made of, and the small graphics of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

from probattn.terminal import printable

DIGIT, TICK_GAP = 7.7, 3.0
"""Width of a digit of an axis in a wide font (DejaVu Sans), and least distance of two labels, pixels."""
Attribute = str | float | int
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """A linear map of the ``domain``, two values of the data, to ``pixels``."""

    domain: tuple[float, float]
    pixels: tuple[float, float]

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside the domain land outside."""
        low, high = self.domain
        start, end = self.pixels
        share = (value - low) / (high - low) if high != low else 0.5
        return start + share * (end - start)


@dataclass(frozen=True)
class Frame:
    """A drawing's size and the margins around its plot, in pixels."""

    width: float = 330
    height: float = 250
    left: float = 44
    right: float = 14
    top: float = 26
    bottom: float = 40


@dataclass(frozen=True)
class Axis:
    """An axis: its range, title and labelled ticks."""

    low: float
    high: float
    title: str
    ticks: tuple[tuple[float, str], ...]


def drawing(width: float, height: float, title: str, description: str = "", css: str = "chart") -> ET.Element:
    """An empty ``<svg>`` with a description for screen readers."""
    box = f"0 0 {number(width)} {number(height)}"
    spoken = printable(f"{title}. {description}" if description else title)
    root = ET.Element("svg", {"viewBox": box, "class": css, "role": "img", "aria-label": spoken})
    root.set("style", f"--natural:{number(width)}px")
    return root


def add(parent: ET.Element, tag: str, css: str = "", **attributes: Attribute) -> ET.Element:
    """Appends an element; ``stroke_width`` is written ``stroke-width``."""
    element = ET.SubElement(parent, tag)
    if css:
        element.set("class", css)
    for name, value in attributes.items():
        element.set(name.replace("_", "-"), value if isinstance(value, str) else number(value))
    return element


def write(
    parent: ET.Element, x: float, y: float, words: str, css: str = "", anchor: str = "start"
) -> ET.Element:
    """Appends text."""
    element = add(parent, "text", css, x=x, y=y)
    if anchor != "start":
        element.set("text-anchor", anchor)
    element.text = printable(words)
    return element


def hint(element: ET.Element, words: str) -> None:
    """Gives an element a tooltip, which screen readers know too."""
    ET.SubElement(element, "title").text = printable(words)


def path(points: Iterable[tuple[float, float]]) -> str:
    """Path data through points."""
    return "".join(f"{'L' if index else 'M'}{number(x)} {number(y)}" for index, (x, y) in enumerate(points))


def text_of(root: ET.Element) -> Markup:
    """The element as markup, special characters escaped."""
    return Markup(ET.tostring(root, encoding="unicode", short_empty_elements=True))


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    rounded = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if rounded == "-0" else rounded


def isolated(words: str) -> str:
    """Printable text whose direction does not spill over into the sentence around it (Unicode isolates).

    Example:
        >>> [hex(ord(character)) for character in isolated("a")]
        ['0x2068', '0x61', '0x2069']
    """
    return f"\N{FIRST STRONG ISOLATE}{printable(words)}\N{POP DIRECTIONAL ISOLATE}"


@dataclass(frozen=True)
class Plot:
    """A drawing with axes: its element, its frame and its two scales."""

    root: ET.Element
    frame: Frame
    across: Scale
    up: Scale

    @classmethod
    def begin(cls, frame: Frame, x: Axis, y: Axis, title: str, description: str) -> Plot:
        """Draws grid lines, tick labels and titles."""
        root = drawing(frame.width, frame.height, title, description)
        right, bottom = frame.width - frame.right, frame.height - frame.bottom
        across, up = Scale((x.low, x.high), (frame.left, right)), Scale((y.low, y.high), (bottom, frame.top))
        for value, label in y.ticks:
            add(root, "line", "grid", x1=frame.left, x2=right, y1=up(value), y2=up(value))
            write(root, frame.left - 7, up(value) + 4, label, "tick", "end")
        write(root, 2, frame.top - 12, y.title, "axis-title")
        bottom_axis(root, frame, across, x, bottom)
        return cls(root, frame, across, up)

    def __call__(self, points: Points) -> str:
        """Path data through points of the data."""
        return path((self.across(a), self.up(b)) for a, b in points)


def bottom_axis(parent: ET.Element, frame: Frame, across: Scale, x: Axis, base: float) -> None:
    """Draws a horizontal axis at the height ``base``; a label that would touch the one before is left out."""
    end, written = frame.width - frame.right, -math.inf
    for value, label in x.ticks:
        at, half = across(value), _width(label) / 2
        mark = add(parent, "line", "tickmark", x1=at, x2=at, y1=base, y2=base + 4)
        if at - half < written + TICK_GAP:
            hint(mark, label)
            continue
        write(parent, at, base + 16, label, "tick", "middle")
        written = at + half
    add(parent, "line", "axis", x1=frame.left, x2=end, y1=base, y2=base)
    if x.title:
        write(parent, (frame.left + end) / 2, base + 35, x.title, "axis-title", "middle")


def _width(label: str) -> float:
    """Width of a tick label in a wide font."""
    return sum(DIGIT / 2 if sign in ".," else DIGIT for sign in label)


def spread_labels(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves label positions apart to at least ``gap``, in order, near where they were, within the bounds."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[tuple[float, int]] = []  # where the labels of a group would be, summed; how many they are

    def centre(total: float, size: int) -> float:
        reach = gap * (size - 1) / 2
        return max(low + reach, min(high - reach, total / size))

    for index in order:
        groups.append((float(positions[index]), 1))
        while (
            len(groups) > 1
            and centre(*groups[-1]) - centre(*groups[-2]) < gap * (groups[-1][1] + groups[-2][1]) / 2
        ):
            (right, many), (left, few) = groups.pop(), groups.pop()
            groups.append((right + left, many + few))
    placed = [
        centre(total, size) + gap * (rank - (size - 1) / 2) for total, size in groups for rank in range(size)
    ]
    result = [0.0] * len(positions)
    for index, position in zip(order, placed, strict=True):
        result[index] = position
    return result


WIDTH = 180
HEIGHT = 22


def interval_glyph(
    gain: float, low: float, high: float, verdict: str, title: str, seeds: Sequence[float] = ()
) -> Markup:
    """An interval beside a zero line, in the direction of improvement: what lies to the right of it is a gain."""
    root = drawing(WIDTH, HEIGHT, title, css="glyph")
    reach = 1.15 * max(map(abs, (low, high, gain, *seeds))) or 1.0
    across = Scale((-reach, reach), (8, WIDTH - 8))
    middle = HEIGHT / 2
    add(root, "line", "zero", x1=WIDTH / 2, x2=WIDTH / 2, y1=1, y2=HEIGHT - 1)
    add(root, "line", "rail", x1=4, x2=WIDTH - 4, y1=middle, y2=middle)
    add(root, "line", f"range {verdict}", x1=across(low), x2=across(high), y1=middle, y2=middle)
    for value in seeds:
        add(root, "circle", "seed", cx=across(value), cy=middle, r=2.5)
    add(root, "circle", f"mark {verdict}", cx=across(gain), cy=middle, r=4.5)
    return text_of(root)


def draws_glyph(draws: Sequence[float], mean: float, baseline: float | None, title: str) -> Markup:
    """The probability of one class in every draw, as dots between 0 and 1, with their mean and the baseline's value."""
    width, height = 300, 30
    root = drawing(width, height, title, css="draws")
    across = Scale((0, 1), (6, width - 6))
    middle = 11
    add(root, "line", "rail", x1=across(0), x2=across(1), y1=middle, y2=middle)
    for share in (0, 0.5, 1):
        add(root, "line", "tickmark", x1=across(share), x2=across(share), y1=middle - 4, y2=middle + 4)
    for value in draws:
        add(root, "circle", "draw", cx=across(value), cy=middle, r=5)
    add(root, "line", "mean", x1=across(mean), x2=across(mean), y1=1, y2=21)
    if baseline is not None:
        x = across(baseline)
        mark = add(root, "path", "baseline", d=f"M{x - 4:.1f} 29L{x + 4:.1f} 29L{x:.1f} 22Z")
        hint(mark, f"deterministic: {baseline:.3f}")
    return text_of(root)


def bar_glyph(value: float, top: float, title: str) -> Markup:
    """A bar of length ``value / top``."""
    root = drawing(120, 12, title, css="bar-glyph")
    add(root, "rect", "rail", x=0, y=4, width=120, height=4, rx=2)
    add(root, "rect", "fill", x=0, y=2, width=max(120 * value / top, 1.0) if top > 0 else 1.0, height=8, rx=2)
    return text_of(root)


SIDE = 132.0
MARGIN = 6.0


def cloud_chart(query: Points, key: Points, reach: float, title: str) -> Markup:
    """Draws queries and keys in a square around the origin."""
    root = drawing(SIDE, SIDE, title, css="cloud")
    across = Scale((-reach, reach), (MARGIN, SIDE - MARGIN))
    up = Scale((-reach, reach), (SIDE - MARGIN, MARGIN))
    add(root, "rect", "cloud-frame", x=0.5, y=0.5, width=SIDE - 1, height=SIDE - 1, rx=4)
    for css, points in (("query", query), ("key-dot", key)):
        # A line of no length with round ends is a dot, at a tenth of a circle's markup.
        dots = "".join(f"M{number(across(x))} {number(up(y))}h0" for x, y in points)
        add(root, "path", f"cloud-dots {css}", d=dots)
    return text_of(root)
