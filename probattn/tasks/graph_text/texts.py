"""What a run of texts about graphs keeps and shows of its texts, and the lines that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from probattn.data import DataError, GraphText, GraphTexts, GraphVocabulary
from probattn.data.graph_texts import read_row
from probattn.files.json_files import write_json_lines
from probattn.report import ModelKey
from probattn.tasks.errors import RunError
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
    for role, dataset in texts.items():
        yield f"{role}\0{dataset.relations}\1"
        yield from (f"{row}\1" for row in dataset.rows)


def surfaces(texts: GraphTexts, written: Written) -> list[str]:
    """Written texts with the entities' words."""
    return [row.named(tokens) for row, tokens in zip(texts.rows, written, strict=True)]


def samples_of(
    test: GraphTexts, written: Mapping[ModelKey, Written], number: int
) -> tuple[GraphTextSample, ...]:
    """A fixed choice of test texts, whatever was written."""
    indices = {row: index for index, row in enumerate(test.rows)}
    rows = test.take(number).rows if number else ()
    return tuple(
        GraphTextSample(
            title=row.title,
            entities=row.entities,
            types=row.types,
            relations=tuple((head, test.relations[kind], tail) for head, kind, tail in row.relations),
            reference=pieces(row.tokens(), row),
            texts={key: pieces(texts[indices[row]], row) for key, texts in written.items()},
        )
        for row in rows
    )


def write_lines(path: Path, test: GraphTexts, written: Mapping[ModelKey, Written]) -> None:
    """Keeps all texts, one JSON object a line."""
    shown = {key: surfaces(test, texts) for key, texts in written.items()}
    write_json_lines(
        path,
        (
            {"title": row.title, "entities": row.entities, "reference": row.surface}
            | {key: texts[index] for key, texts in shown.items()}
            for index, row in enumerate(test.rows)
        ),
    )
