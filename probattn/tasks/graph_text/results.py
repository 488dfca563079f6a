"""Results of a run of texts about graphs: the records of ``metrics.json``, and the texts that it keeps and shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from probattn.data import DataError, GraphText, GraphTexts, GraphVocabulary
from probattn.data.graph_texts import read_row
from probattn.files.json_files import write_json_lines
from probattn.report import ModelKey, Results
from probattn.report.record import Record
from probattn.tasks.errors import RunError


class Piece(Record):
    """Words of a text that belong together: a copied entity, or what stands between two of them."""

    words: str
    entity: int | None = None


class GraphTextSample(Record):
    """A test text with its graph (relations: entity, name, entity), and what each model wrote."""

    title: str
    entities: tuple[str, ...]
    types: tuple[str, ...]
    relations: tuple[tuple[int, str, int], ...]
    reference: tuple[Piece, ...]
    texts: Mapping[ModelKey, tuple[Piece, ...]]


class GraphTextResults(Results):
    """Everything that the report shows; ``signature`` says how BLEU and METEOR were computed."""

    signature: str = ""
    samples: tuple[GraphTextSample, ...] = ()


def pieces(tokens: list[str | int], row: GraphText) -> tuple[Piece, ...]:
    """Pieces of a text, from words and numbers of entities."""
    spans: list[Piece] = []
    between: list[str] = []
    for token in [*tokens, None]:
        if isinstance(token, str):
            between.append(token)
            continue
        if between:
            spans.append(Piece(words=" ".join(between)))
            between = []
        if token is not None:
            spans.append(Piece(words=row.entities[token], entity=token))
    return tuple(spans)


Written = list[list[str | int]]
"""Words and numbers of entities of each text."""


def row_to_write(line: str, vocabulary: GraphVocabulary) -> GraphText:
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
    return tuple(
        GraphTextSample(
            title=row.title,
            entities=row.entities,
            types=row.types,
            relations=tuple((head, test.relations[kind], tail) for head, kind, tail in row.relations),
            reference=pieces(row.tokens(), row),
            texts={key: pieces(texts[index], row) for key, texts in written.items()},
        )
        for index, row in ((index, test.rows[index]) for index in (test.choice(number) if number else ()))
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
