"""Pieces that sections of a page share: numbers and texts as safe markup, attention maps, figures, labels of sites."""

from __future__ import annotations

import base64
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from markupsafe import Markup, escape

from probattn.report.svg import add, drawing, hint, number, text_of, write
from probattn.terminal import printable


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
    numbers: Callable[[Any], tuple[float | None, float | None]],
    words: Callable[[float | None], Markup],
) -> list[tuple[str, str, list[Iterable[Markup]]]]:
    """Rows of a table of attention calls: name, label, and the two numbers of each network in words."""
    sites = {(site.model, site.site): list(map(words, numbers(site))) for site in measured.sites}
    none = list(map(words, (None, None)))
    return [
        (name, label, [sites.get((model, name), none) for model in measured.models])
        for name, label in labels.items()
    ]


def site_labels(names: Iterable[str]) -> dict[str, str]:
    """Short labels: what distinguishes the names, dots apart."""
    paths = {name: name.split(".") for name in names}
    lengths = {len(path) for path in paths.values()}
    if len(paths) < 2 or len(lengths) > 1:
        return {name: printable(path[-1] if len(paths) < 2 else name) for name, path in paths.items()}
    differing = [index for index in range(lengths.pop()) if len({path[index] for path in paths.values()}) > 1]
    labels = {}
    for name, path in paths.items():
        words = [
            f"{path[index - 1]} {path[index]}" if path[index].isdigit() and index else path[index]
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


LABELLED = 64
"""Above this number of tokens the axes carry positions instead of tokens."""

Matrix = Sequence[Sequence[float]]


def heatmap(
    queries: Sequence[str],
    keys: Sequence[str],
    values: Matrix,
    top: float,
    ramp: str,
    title: str,
    second: int | None = None,
) -> Markup:
    """Queries as rows, keys as columns; grey, for the filter ``ramp`` to colour and a script to exchange."""
    labelled = max(len(queries), len(keys)) <= LABELLED
    cell = 15.0 if labelled else max(2.5, 620 / max(len(queries), len(keys)))
    longest = max((_width(shown(token)) for token in (*queries, *keys)), default=1) if labelled else 0
    gutter = min(7.0 * longest + 8, 88) if labelled else 34
    width, height = cell * len(keys), cell * len(queries)
    root = drawing(gutter + width + 2, gutter + height + 2, title, css="map")
    add(root, "rect", "map-frame", x=gutter, y=gutter, width=width, height=height)
    picture = add(root, "image", f"map-picture ramp-{ramp}", x=gutter, y=gutter, width=width, height=height)
    picture.set("preserveAspectRatio", "none")
    picture.set("href", grey_png(values, top))
    if second is not None:
        edge, ends = gutter + cell * second, (gutter + width, gutter + height)
        add(root, "path", "map-divide", d=f"M{number(gutter)} {number(edge)}H{number(ends[0])}")
        add(root, "path", "map-divide", d=f"M{number(edge)} {number(gutter)}V{number(ends[1])}")
    _labels(root, queries, gutter, cell, labelled, across=False)
    _labels(root, keys, gutter, cell, labelled, across=True)
    for name, value in (("gutter", gutter), ("cell", cell)):
        root.set(f"data-{name}", number(value))
    return text_of(root)


def _labels(
    root: ET.Element, tokens: Sequence[str], gutter: float, cell: float, labelled: bool, *, across: bool
) -> None:
    group = add(root, "g", "keys" if across else "queries")
    for index, token in enumerate(tokens):
        if not labelled and index % 20:
            continue
        middle = gutter + cell * (index + 0.5)
        words = shown(token) if labelled else str(index)
        if across:
            element = write(group, 0, 0, words, "token")
            element.set("transform", f"translate({number(middle + 4)} {number(gutter - 5)}) rotate(-90)")
        else:
            element = write(group, gutter - 5, middle + 4, words, "token", "end")
        element.set("data-index", str(index))
        if words != token:
            hint(element, token)


def grey_png(values: Matrix, top: float) -> str:
    """A data URL of a grey picture, one pixel a number, white from ``top`` on."""
    top = top or 1.0
    rows = b"".join(b"\0" + bytes(min(255, round(255 * value / top)) for value in row) for row in values)
    header = struct.pack(">IIBBBBB", len(values[0]) if values else 0, len(values), 8, 0, 0, 0, 0)
    blocks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n"
    for name, data in blocks:
        png += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return "data:image/png;base64," + base64.b64encode(png).decode()


def shown(token: str, room: int = 11) -> str:
    """A token as a label: without a tokenizer's space marks, cut to ``room`` columns."""
    words = printable(token)
    if len(words) > 1 and words[0] in "\u0120\u2581":
        words = words[1:]
    words = words.replace("\u010a", "\N{RETURN SYMBOL}").strip() or "\N{OPEN BOX}"
    if _width(words) <= room:
        return words
    beginning = ""
    for character in words:
        if _width(beginning + character) > room - 1:
            break
        beginning += character
    return printable(beginning + "\N{HORIZONTAL ELLIPSIS}")


def _width(words: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in words)
