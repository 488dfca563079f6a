"""Numbers and words as safe markup."""

from __future__ import annotations

from markupsafe import Markup, escape

from probattn.inference.report.charts.svg import printable


def exact(value: float | None, words: str) -> Markup:
    """A number as people read it, with its exact value for machines."""
    if value is None:
        return Markup("\N{EN DASH}")
    return Markup('<data value="{}">{}</data>').format(repr(value), words)


def plain(words: str) -> Markup:
    """Text without control characters, escaped, kept apart from the direction of the text around it."""
    return Markup("<bdi>{}</bdi>").format(escape(printable(words)))


def shortened(text: str, room: int = 110) -> str:
    """A printable text as a title of its panel.

    Example:
        >>> shortened("word " * 3, room=8)
        'word wo…'
    """
    return printable(text if len(text) <= room else f"{text[: room - 1]}\N{HORIZONTAL ELLIPSIS}")
