"""Pieces that sections of a page share: numbers and texts as safe markup, figures, panels, labels of sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from probattn.inference.report.charts.svg import printable


def exact(value: float | None, words: str) -> Markup:
    """A number as text, with its exact value as data."""
    if value is None:
        return Markup("\N{EN DASH}")
    return Markup('<data value="{}">{}</data>').format(repr(value), words)


def formatted(value: float | None, spec: str) -> Markup:
    """A number by a format specification, with its exact value for machines.

    Example:
        >>> formatted(0.5, ".1%")
        Markup('<data value="0.5">50.0%</data>')
    """
    return exact(value, "" if value is None else format(value, spec))


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


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        id: its anchor.
        title: its name in the contents.
        heading: its heading.
        template: the file that shows it.
        context: what the template needs, besides what every template has.
    """

    id: str
    title: str
    heading: str
    template: str
    context: Mapping[str, Any]


Layer = tuple[str, str, tuple[tuple[Markup, Markup], ...]]
"""A row of a table of attention calls: name, label, and two numbers a network."""


@dataclass(frozen=True)
class Panel:
    """Drawings that stand side by side, with the network of each."""

    heading: str
    drawings: tuple[tuple[str, Markup], ...]


def site_labels(names: Iterable[str]) -> dict[str, str]:
    """Short labels: what distinguishes the names, dots apart.

    Example:
        >>> site_labels(["net.layer.0.attention", "net.layer.1.attention"])
        {'net.layer.0.attention': 'layer 0', 'net.layer.1.attention': 'layer 1'}
        >>> site_labels(["net.attention"])
        {'net.attention': 'attention'}
    """
    names = list(dict.fromkeys(names))
    parts = {name: name.split(".") for name in names}
    lengths = {len(part) for part in parts.values()}
    if len(names) < 2 or len(lengths) > 1:
        return {name: printable(part[-1] if len(names) < 2 else name) for name, part in parts.items()}
    differing = [index for index in range(lengths.pop()) if len({part[index] for part in parts.values()}) > 1]
    labels = {}
    for name, part in parts.items():
        words = [
            f"{part[index - 1]} {part[index]}" if part[index].isdigit() and index else part[index]
            for index in differing
        ]
        labels[name] = printable(" ".join(words))
    return labels


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading."""

    heading: str
    svg: Markup
    style: str = ""
    note: str = ""
