"""Queries and keys of one head as two clouds of dots."""

from __future__ import annotations

from collections.abc import Sequence

from probattn.inference.report.charts.svg import Scale, add, drawing, number, text_of

SIDE = 132.0
MARGIN = 6.0

Points = Sequence[tuple[float, float]]


def cloud_chart(query: Points, key: Points, reach: float, title: str) -> str:
    """Draws queries and keys in a square around the origin.

    Args:
        query: the queries.
        key: the keys.
        reach: what the square reaches to in both directions, > 0; the same for charts that are compared.
        title: what a screen reader says.

    Returns:
        An ``<svg>`` element.

    Example:
        >>> cloud_chart([(0.0, 0.0)], [(1.0, 1.0)], 1.0, "one head").count("<path")
        2
    """
    root = drawing(SIDE, SIDE, title, css="cloud")
    across = Scale((-reach, reach), (MARGIN, SIDE - MARGIN))
    up = Scale((-reach, reach), (SIDE - MARGIN, MARGIN))
    add(root, "rect", "cloud-frame", x=0.5, y=0.5, width=SIDE - 1, height=SIDE - 1, rx=4)
    for css, points in (("query", query), ("key-dot", key)):
        # A line of no length with round ends is a dot, at a tenth of a circle's markup.
        dots = "".join(f"M{number(across(x))} {number(up(y))}h0" for x, y in points)
        add(root, "path", f"cloud-dots {css}", d=dots)
    return text_of(root)
