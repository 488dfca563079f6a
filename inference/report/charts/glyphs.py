"""Small graphics that stand in tables and beside texts."""

from __future__ import annotations

from collections.abc import Sequence

from probattn.inference.report.charts.svg import Scale, add, drawing, hint, text_of

WIDTH = 180
HEIGHT = 22


def interval_glyph(
    gain: float, low: float, high: float, verdict: str, title: str, seeds: Sequence[float] = ()
) -> str:
    """An interval beside a zero line, in the direction of improvement: what lies to the right of it is a gain.

    Args:
        gain: the difference, its sign turned so that positive is better.
        low: lower end of the interval, in the same sense.
        high: upper end.
        verdict: "better", "worse" or "unclear"; gives the colour.
        title: what a screen reader says.
        seeds: the differences that ``gain`` is the mean of, in the same sense.

    Returns:
        An ``<svg>`` element; its scale is its own.
    """
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


def draws_glyph(draws: Sequence[float], mean: float, baseline: float | None, title: str) -> str:
    """The probability of one class in every draw, as dots between 0 and 1, with their mean and the baseline's value.

    Args:
        draws: probabilities.
        mean: their mean.
        baseline: what the deterministic network gives the same class; None leaves it out.
        title: what a screen reader says.

    Returns:
        An ``<svg>`` element.
    """
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


def bar_glyph(value: float, top: float, title: str) -> str:
    """A bar of length ``value / top``."""
    root = drawing(120, 12, title, css="bar-glyph")
    add(root, "rect", "rail", x=0, y=4, width=120, height=4, rx=2)
    add(root, "rect", "fill", x=0, y=2, width=max(120 * value / top, 1.0) if top > 0 else 1.0, height=8, rx=2)
    return text_of(root)
