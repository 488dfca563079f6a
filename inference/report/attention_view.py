"""Attention examples, ready for the template: static first view, and the numbers for the script."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from probattn.inference.report.charts.heatmap import heatmap, shown
from probattn.inference.report.charts.svg import isolated, printable
from probattn.inference.report.examples import AttentionExample, AttentionMap
from probattn.inference.report.markup import shortened
from probattn.inference.report.measures import MODEL_LABELS, MODEL_TITLES
from probattn.inference.report.record import ModelKey
from probattn.inference.report.tables import site_labels

REASONS = {"chosen": "chosen", "uncertain": "most uncertain"}
CLIPPED = 0.99
"""Share of the cells that the colour scale tells apart; the few larger ones get its last colour."""

BETWEEN = "\N{MIDDLE DOT}"
"""Stands between the two texts of a pair in a title."""


@dataclass(frozen=True)
class Kind:
    """One way to look at a map.

    Attributes:
        name: field of the record.
        heading: above the drawing.
        title: what a screen reader says.
        said: beside a number.
        scale: of the packed integers.
        digits: decimals of a number.
        ramp: colours.
    """

    name: str
    heading: str
    title: str
    said: str
    scale: int
    digits: int
    ramp: str


Option = tuple[str, str, str]


@dataclass(frozen=True)
class AttentionView:
    """One example of the attention section.

    Attributes:
        id: number on the page.
        reason: why it is shown.
        title: the input, shortened.
        answer: the prediction, in words.
        strip: tokens as shown, their share of the largest mean weight received, as they are, and whether the second
            text begins with them.
        choices: radio buttons: name, legend, and value, label and tooltip of each.
        showing: what the maps show.
        maps: kind, heading, drawing and the upper end of its colours.
        strongest: the largest weights, in words.
        payload: JSON for the script.
    """

    id: int
    reason: str
    title: str
    answer: str
    strip: tuple[tuple[str, str, str, bool], ...]
    choices: tuple[tuple[str, str, tuple[Option, ...]], ...]
    showing: str
    maps: tuple[tuple[str, str, Markup, str], ...]
    strongest: str
    payload: Markup


def attention_views(
    examples: Sequence[AttentionExample],
    site_names: Sequence[str],
    to_json: Callable[[Any], Markup],
    model: ModelKey = "bayesian_mean",
) -> list[AttentionView]:
    """Views of the examples.

    Args:
        examples: the records.
        site_names: all sites of the network, so that labels agree with the table of sites.
        to_json: writes JSON that is safe inside a ``<script>``.
        model: whose attention it is, the baseline's aside.
    """
    own = [item.site for example in examples for item in example.maps]
    labels = site_labels([*site_names, *own])
    return [_view(number, example, labels, to_json, model) for number, example in enumerate(examples)]


def _view(
    number: int,
    item: AttentionExample,
    labels: Mapping[str, str],
    to_json: Callable[[Any], Markup],
    model: ModelKey,
) -> AttentionView:
    first = item.maps[0]
    kinds = [kind for kind in _kinds(first, model) if getattr(first, kind.name)]
    entries = [_entry(item, one, kinds, labels) for one in item.maps]
    entry = entries[0]
    maps = tuple(
        (kind.name, kind.heading, Markup(_drawn(item, first, kind, entry)), entry[f"{kind.name}_words"])
        for kind in kinds
    )
    payload = {
        "queries": list(map(printable, item.queries)),
        "keys": list(map(printable, item.keys)),
        "kinds": [
            {"name": kind.name, "said": kind.said, "scale": kind.scale, "digits": kind.digits}
            for kind in kinds
        ],
        "maps": entries,
    }
    return AttentionView(
        id=number,
        reason=REASONS[item.reason],
        title=shortened(_whole(item)),
        answer=_answer(item),
        strip=_strip(item),
        choices=_choices(item, labels),
        showing=entry["showing"],
        maps=maps,
        strongest=entry["strongest"],
        payload=to_json(payload),
    )


def _whole(item: AttentionExample) -> str:
    pair = item.example.pair
    return item.example.text if pair is None else f"{item.example.text} {BETWEEN} {pair}"


def _answer(item: AttentionExample) -> str:
    example = item.example
    words = f"{isolated(example.predicted)}, {example.probability:.0%}"
    if example.draws or example.spread:
        words += f" ± {100 * example.spread:.0f} points"
    if example.label is None:
        return words
    return (
        f"{words}; {'right' if example.label == example.predicted else f'in truth {isolated(example.label)}'}"
    )


def _strip(item: AttentionExample) -> tuple[tuple[str, str, str, bool], ...]:
    rows = item.maps[0].mean
    received = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    most = max(received, default=0.0) or 1.0
    return tuple(
        (shown(token, room=40), f"{share / most:.3f}", token, place == item.second)
        for place, (token, share) in enumerate(zip(item.keys, received, strict=True))
    )


def _choices(
    item: AttentionExample, labels: Mapping[str, str]
) -> tuple[tuple[str, str, tuple[Option, ...]], ...]:
    sites = tuple((name, labels[name], name) for name in dict.fromkeys(one.site for one in item.maps))
    heads = dict.fromkeys(one.head for one in item.maps)
    options = tuple(
        (_head_value(head), "average" if head is None else str(head), _head(head)) for head in heads
    )
    offered = (("site", "Attention call", sites), ("head", "Head", options))
    return tuple(choice for choice in offered if len(choice[2]) > 1)


def _head(head: int | None) -> str:
    return "average of the heads" if head is None else f"head {head}"


def _head_value(head: int | None) -> str:
    return "average" if head is None else str(head)


def _kinds(one: AttentionMap, model: ModelKey) -> tuple[Kind, ...]:
    """What may be shown of a map, the left one first."""
    latent, title, label = bool(one.ratio), MODEL_TITLES[model], MODEL_LABELS[model]
    return (
        Kind(
            "baseline", "Deterministic", "Deterministic attention weights", "deterministic", 10_000, 4, "mean"
        ),
        Kind("mean", "Mean weight", "Posterior mean of the attention weights", "mean", 10_000, 4, "mean")
        if latent
        else Kind("mean", title, f"{title} attention weights", label, 10_000, 4, "mean"),
        Kind(
            "ratio",
            "Std / mean",
            "Standard deviation over mean of the attention weights",
            "std/mean",
            1_000,
            3,
            "ratio",
        ),
    )


def _drawn(item: AttentionExample, one: AttentionMap, kind: Kind, entry: Mapping[str, Any]) -> str:
    values, top, title = getattr(one, kind.name), entry[f"{kind.name}_top"], entry[f"{kind.name}_title"]
    return heatmap(item.queries, item.keys, values, top, kind.ramp, title, item.second)


def _entry(
    item: AttentionExample, one: AttentionMap, kinds: Sequence[Kind], labels: Mapping[str, str]
) -> dict[str, Any]:
    place = f"{labels[one.site]}, {'a row a head' if item.rows == 'heads' else _head(one.head)}"
    entry: dict[str, Any] = {
        "site": printable(one.site),
        "head": _head_value(one.head),
        "showing": f"Shown: {place}.",
        "strongest": _strongest(item, one),
    }
    weights = _top([*one.mean, *one.baseline])  # one scale for what is to be compared
    for kind in kinds:
        top, clipped = _top(one.ratio) if kind.name == "ratio" else weights
        entry[f"{kind.name}16"] = _packed(getattr(one, kind.name), kind.scale)
        entry[f"{kind.name}_title"] = f"{kind.title}, {place}"
        entry[f"{kind.name}_top"] = top
        entry[f"{kind.name}_words"] = f"{top:.2f}{'+' if clipped else ''}"
    return entry


def _top(values: Sequence[Sequence[float]]) -> tuple[float, bool]:
    """Upper end of the colour scale, and whether any value lies above it."""
    ordered = sorted(value for row in values for value in row)
    if not ordered:
        return 0.0, False
    top = ordered[int(CLIPPED * (len(ordered) - 1))] or ordered[-1]
    return top, ordered[-1] > top


def _strongest(item: AttentionExample, one: AttentionMap) -> str:
    cells = [(value, q, k) for q, row in enumerate(one.mean) for k, value in enumerate(row)]
    cells.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    words = [
        f"\N{LEFT DOUBLE QUOTATION MARK}{isolated(shown(item.queries[q], 24))}\N{RIGHT DOUBLE QUOTATION MARK} to "
        f"\N{LEFT DOUBLE QUOTATION MARK}{isolated(shown(item.keys[k], 24))}\N{RIGHT DOUBLE QUOTATION MARK} "
        f"{value:.2f}{_beside(one, q, k)}"
        for value, q, k in cells[:3]
    ]
    return f"Largest weights: {', '.join(words)}."


def _beside(one: AttentionMap, query: int, key: int) -> str:
    if one.ratio:
        return f" (std/mean {one.ratio[query][key]:.2f})"
    return f" (deterministic {one.baseline[query][key]:.2f})" if one.baseline else ""


def _packed(rows: Sequence[Sequence[float]], scale: int) -> str:
    """Numbers as base64 of little-endian 16-bit integers ``value * scale``; the records round to that grid."""
    whole = [min(65_535, round(value * scale)) for row in rows for value in row]
    return base64.b64encode(struct.pack(f"<{len(whole)}H", *whole)).decode()
