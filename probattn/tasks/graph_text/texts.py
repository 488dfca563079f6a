"""What a run of texts about graphs keeps and shows of its texts, and the lines that it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from probattn.data import DataError, GraphText, GraphTexts, GraphVocabulary
from probattn.data.graph_texts import read_row
from probattn.files.durable import write_atomically
from probattn.inference.report import DataSet, ModelKey
from probattn.tasks.errors import RunError
from probattn.tasks.graph_text.recipe import GraphTextRecipe
from probattn.tasks.graph_text.results import GraphTextSample, pieces

Written = list[list[str | int]]
"""Words and numbers of entities of each text."""


def given_row(line: str, vocabulary: GraphVocabulary) -> GraphText:
    """A line to write about; ``RunError`` where it is none."""
    try:
        row = read_row(line, vocabulary.relations, "a line to write about", written=False)
        GraphTexts((row,), vocabulary.relations, "predict").check_types(vocabulary.types)
    except DataError as error:
        raise RunError(str(error)) from error
    return row


def digested(texts: Mapping[str, GraphTexts]) -> Iterator[str]:
    """What a fingerprint of the data is made of."""
    for role, part in texts.items():
        yield f"{role}\0{part.relations}\1"
        yield from (f"{row}\1" for row in part.rows)


def surfaces(texts: GraphTexts, written: Written) -> list[str]:
    """Written texts with the entities' words."""
    return [row.named(tokens) for row, tokens in zip(texts.rows, written, strict=True)]


def samples_of(
    test: GraphTexts, written: Mapping[ModelKey, Written], number: int
) -> tuple[GraphTextSample, ...]:
    """A fixed choice of test texts, whatever was written."""
    places = {row: place for place, row in enumerate(test.rows)}
    chosen = test.take(number).rows if number else ()
    return tuple(
        GraphTextSample(
            title=row.title,
            entities=row.entities,
            types=row.types,
            relations=tuple((head, test.relations[kind], tail) for head, kind, tail in row.relations),
            reference=pieces(row.tokens(), row),
            texts={key: pieces(texts[places[row]], row) for key, texts in written.items()},
        )
        for row in chosen
    )


def write_lines(path: Path, test: GraphTexts, written: Mapping[ModelKey, Written]) -> None:
    """Keeps all texts, one JSON object a line."""
    shown = {key: surfaces(test, texts) for key, texts in written.items()}
    lines = []
    for place, row in enumerate(test.rows):
        own = {key: texts[place] for key, texts in shown.items()}
        content = {"title": row.title, "entities": row.entities, "reference": row.surface, **own}
        lines.append(json.dumps(content, ensure_ascii=False))
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def data_set(test: GraphTexts) -> DataSet:
    """The test texts, as the report describes them."""
    return DataSet(
        key="test",
        title="Test",
        role="in_domain",
        size=len(test),
        labelled=True,
        source=f"{test.source}; {test.licence}",
        unit="texts",
    )


def search_words(recipe: GraphTextRecipe) -> str:
    """The search in words."""
    search = recipe.search
    if search.num_beams == 1:
        return "greedy search"
    return f"beam search, {search.num_beams} beams, length penalty {search.length_penalty:g}"
