"""Pieces that sections of a page share: numbers and texts as safe markup, figures, panels, labels of sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from probattn.report.charts.svg import printable


def exact(value: float | None, words: str) -> Markup:
    """A number as text, with its exact value as data."""
    if value is None:
        return Markup("\N{EN DASH}")
    return Markup('<data value="{}">{}</data>').format(repr(value), words)


def formatted(value: float | None, spec: str) -> Markup:
    """A number by a format specification, with its exact value for machines."""
    return exact(value, "" if value is None else format(value, spec))


def plain(words: str) -> Markup:
    """Text without control characters, escaped, kept apart from the direction of the text around it."""
    return Markup("<bdi>{}</bdi>").format(escape(printable(words)))


def breakable(name: str) -> Markup:
    """A name such as ``card_payment`` as :func:`plain` has it, with places after underscores where a line may break."""
    return plain(name).replace("_", Markup("_<wbr>"))


def shortened(text: str, room: int = 110) -> str:
    """A printable text as a title of its panel."""
    return printable(text if len(text) <= room else f"{text[: room - 1]}\N{HORIZONTAL ELLIPSIS}")


@dataclass(frozen=True)
class Section:
    """A section of a page: its anchor, its name in the contents, its heading, and the template with what it needs."""

    id: str
    title: str
    heading: str
    template: str
    context: Mapping[str, Any]


Panel = tuple[str, list[tuple[str, Markup]]]
"""A heading, and drawings that stand side by side with the network of each."""


def by_call(
    measured: Any,
    labels: Mapping[str, str],
    numbers: Callable[[Any], Iterable[Markup]],
    none: Iterable[Markup],
) -> list[tuple[str, str, list[Iterable[Markup]]]]:
    """Rows of a table of attention calls: name, label, and the numbers of each network."""
    sites = {(site.model, site.site): numbers(site) for site in measured.sites}
    return [
        (name, label, [sites.get((model, name), none) for model in measured.models])
        for name, label in labels.items()
    ]


def site_labels(names: Iterable[str]) -> dict[str, str]:
    """Short labels: what distinguishes the names, dots apart."""
    names = list(dict.fromkeys(names))
    components = {name: name.split(".") for name in names}
    lengths = {len(words_of_name) for words_of_name in components.values()}
    if len(names) < 2 or len(lengths) > 1:
        return {
            name: printable(words_of_name[-1] if len(names) < 2 else name)
            for name, words_of_name in components.items()
        }
    differing = [
        index
        for index in range(lengths.pop())
        if len({words_of_name[index] for words_of_name in components.values()}) > 1
    ]
    labels = {}
    for name, words_of_name in components.items():
        words = [
            f"{words_of_name[index - 1]} {words_of_name[index]}"
            if words_of_name[index].isdigit() and index
            else words_of_name[index]
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
