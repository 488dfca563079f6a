"""The page of a run of texts about graphs, with knowledge graphs as drawings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from probattn.report import MODEL_TITLES
from probattn.report.markup import Section, plain
from probattn.report.measures import MODEL_STYLES
from probattn.report.svg import add, drawing, hint, path, text_of, write
from probattn.tasks.graph_text.results import GraphTextResults, GraphTextSample, Piece


def sections(results: GraphTextResults) -> Iterator[Section]:
    """The section on samples."""
    context = {
        "samples": [_shown(sample) for sample in results.samples],
        "signature": results.signature,
        "search": results.run.search,
    }
    if results.samples:
        yield Section("samples", "Texts", "Texts and their graphs", "samples.html", context)


def _shown(sample: GraphTextSample) -> dict[str, Any]:
    """A sample as the template shows it."""
    texts = {MODEL_STYLES[model]: (MODEL_TITLES[model], text) for model, text in sample.texts.items()}
    named = {style: entities_of(text) for style, (_, text) in texts.items()}
    return {
        "title": sample.title,
        "drawing": graph_drawing(sample, named),
        "reference": marked(sample.reference),
        "named": f"{len(entities_of(sample.reference))} of {len(sample.entities)}",
        "texts": [
            {
                "style": style,
                "model": title,
                "text": marked(text),
                "named": f"{len(named[style])} of {len(sample.entities)}",
            }
            for style, (title, text) in texts.items()
        ],
    }


def entities_of(text: Iterable[Piece]) -> frozenset[int]:
    """Numbers of the entities that a text copies."""
    return frozenset(piece.entity for piece in text if piece.entity is not None)


def marked(text: Iterable[Piece]) -> Markup:
    """A text with its copied entities marked."""
    spans = [
        plain(piece.words)
        if piece.entity is None
        else Markup('<mark class="copied" title="entity {}">{}</mark>').format(
            piece.entity, plain(piece.words)
        )
        for piece in text
    ]
    return Markup(" ").join(spans)


ROW, LANE, TOP = 26.0, 32.0, 24.0
NAMES, DOTS, GAP = 330.0, 14.0, 12.0
"""Largest width of the entities' names, widths of the columns of dots, and of the space before the first lane."""
BESIDE = 6.0
"""From a lane to the foot of its words."""
LETTER = 6.4
"""Width of a letter."""
ROOM = int(NAMES / LETTER) - 2
"""Letters of a name."""


def graph_drawing(sample: GraphTextSample, named: Mapping[str, Collection[int]]) -> Markup:
    """Entities with a column of dots for each style of ``named``, filled for its text; an arrow for each relation."""
    edge = min(NAMES, 20 + LETTER * max(map(len, sample.entities)))
    first = edge + DOTS * len(named) + GAP
    height = TOP + ROW * len(sample.entities) + 8
    width = first + LANE * max(1, len(sample.relations)) + 20
    root = drawing(
        width, height, f"Knowledge graph of {sample.title}", _description(sample), css="chart knowledge"
    )
    for index, (name, kind) in enumerate(zip(sample.entities, sample.types, strict=True)):
        y = _y(index)
        short = name if len(name) <= ROOM else f"{name[: ROOM - 1]}\N{HORIZONTAL ELLIPSIS}"
        label = write(root, edge - 10, y + 4, short, "entity", anchor="end")
        hint(label, f"{name} ({kind})")
        for column, (style, having) in enumerate(named.items()):
            css = f"dot {style}" if index in having else "dot absent"
            hint(add(root, "circle", css, cx=edge + DOTS * column + 3, cy=y, r=4), name)
        add(root, "line", "rail", x1=first - GAP, y1=y, x2=width - 4, y2=y)
    for lane, (head, relation, tail) in enumerate(_by_length(sample)):
        x = first + LANE * lane + LANE / 2
        start, end = _y(head), _y(tail)
        if head == tail:
            start, end = start - ROW / 3, end + ROW / 3
        away = 1 if end > start else -1
        group = add(root, "g", "relation")
        hint(group, f"{sample.entities[head]} {relation} {sample.entities[tail]}")
        add(group, "path", "wire", d=path([(x, start), (x, end - 5 * away)]))
        add(group, "circle", "tail", cx=x, cy=start, r=2.5)
        add(
            group,
            "path",
            "arrow",
            d=path([(x - 3.5, end - 7 * away), (x, end - 1 * away), (x + 3.5, end - 7 * away)]),
        )
        middle = (start + end) / 2
        words = write(group, x + BESIDE, middle, short_name(relation), "kind", anchor="middle")
        words.set("transform", f"rotate(90 {x + BESIDE:.1f} {middle:.1f})")
    return text_of(root)


def short_name(relation: str) -> str:
    """A relation in lower case without its hyphens, cut where it would be longer than most lanes."""
    words = relation.lower().replace("-", " ")
    return words if len(words) <= 12 else f"{words[:11]}."


def _y(index: int) -> float:
    return TOP + ROW * index


def _by_length(sample: GraphTextSample) -> list[tuple[int, str, int]]:
    """Relations, those between neighbours first."""
    return sorted(
        sample.relations, key=lambda relation: (abs(relation[0] - relation[2]), min(relation[0], relation[2]))
    )


def _description(sample: GraphTextSample) -> str:
    words = [
        f"{sample.entities[head]} {kind} {sample.entities[tail]}" for head, kind, tail in sample.relations
    ]
    return "; ".join(words) or "no relations"
