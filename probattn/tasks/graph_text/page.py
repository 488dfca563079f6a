"""The page of a run of texts about graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from markupsafe import Markup

from probattn.report import MODEL_TITLES
from probattn.report.markup import Section, plain
from probattn.report.measures import MODEL_STYLES
from probattn.tasks.graph_text.drawing import graph_drawing
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
    """A text with its copied entities marked.

    Example:
        >>> marked([Piece(words="we use"), Piece(words="a parser", entity=0)])
        Markup('<bdi>we use</bdi> <mark class="copied" title="entity 0"><bdi>a parser</bdi></mark>')
    """
    spans = [
        plain(piece.words)
        if piece.entity is None
        else Markup('<mark class="copied" title="entity {}">{}</mark>').format(
            piece.entity, plain(piece.words)
        )
        for piece in text
    ]
    return Markup(" ").join(spans)
