"""Texts about knowledge graphs: titles, entities, the relations between them, and abstracts, as in AGENDA."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probattn.checks import shortened, shown
from probattn.data.errors import DataError, DataWarning, suggestion
from probattn.data.files import read_text
from probattn.data.identity import Sampled, by_length, text_key

_REFERENCE = re.compile(r"<(\w+)_(\d+)>")
_TYPE = re.compile(r"<(\w+)>")
DIGITS = 9
"""Most digits of a number."""
COLUMNS = ("title", "entities", "types", "relations", "text")
LICENCE = "cite Koncel-Kedziorski et al. 2019 (Text Generation from Knowledge Graphs with Graph Transformers)"

Relation = tuple[int, int, int]
"""Index of an entity, index of the kind of relation, and index of another entity."""


@dataclass(frozen=True)
class GraphText:
    """A title, a graph of entities and relations, and a text about it.

    Attributes:
        title: words separated by spaces.
        entities: one or more entities, each as words separated by spaces.
        types: type of each entity.
        relations: relations between entities.
        text: words and entities separated by spaces; ``<method_2>`` is entity 2, whose type is "method". Empty if the
            text is to be generated.

    Example:
        >>> row = GraphText("a parser", ("fast parser", "texts"), ("method", "data"), ((0, 0, 1),), "a <method_0> .")
        >>> row.tokens(), row.surface
        (['a', 0, '.'], 'a fast parser .')
    """

    title: str
    entities: tuple[str, ...]
    types: tuple[str, ...]
    relations: tuple[Relation, ...]
    text: str = ""

    def tokens(self) -> list[str | int]:
        """The words of the text as strings, and its entities as indices."""
        words = [(word, _REFERENCE.fullmatch(word)) for word in self.text.split()]
        return [word if reference is None else int(reference[2]) for word, reference in words]

    def named(self, tokens: Sequence[str | int]) -> str:
        """The text of ``tokens``, words and indices of entities, with the names of the entities."""
        return " ".join(token if isinstance(token, str) else self.entities[token] for token in tokens)

    @property
    def surface(self) -> str:
        """The text with the names of the entities."""
        return self.named(self.tokens())


@dataclass(frozen=True)
class GraphTexts(Sampled):
    """Texts about graphs.

    Attributes:
        rows: one or more texts.
        relations: names of the kinds of relations.
        source: description of the data in messages and reports.
        licence: licence of the texts, if known.
    """

    rows: tuple[GraphText, ...]
    relations: tuple[str, ...]
    source: str
    licence: str = LICENCE

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def types(self) -> tuple[str, ...]:
        """Types of all entities, sorted."""
        return tuple(sorted({name for row in self.rows for name in row.types}))

    def shortest_first(self) -> list[int]:
        """Indices of the rows by number of words of their texts, so that batches need little padding."""
        return by_length(row.text.split() for row in self.rows)

    def split(self, held_out: int) -> tuple[GraphTexts, GraphTexts]:
        """Returns the rows without a fixed pseudo-random choice of ``held_out`` rows, and the rows of this choice.

        Raises:
            DataError: one of the two parts is empty.
        """
        if len(self) == 1:
            raise DataError(f"{self.source}: expected two texts or more, one to hold out, got one")
        if not 1 <= held_out < len(self):
            raise DataError(
                f"{self.source}: expected 1 to {len(self) - 1} of its {len(self)} texts to be held out, got {held_out}"
            )
        indices = self.choice(held_out)
        rest = sorted(set(range(len(self))) - set(indices))
        return self.at(rest), self.at(indices)

    def at(self, places: Sequence[int]) -> GraphTexts:
        """The rows with these indices, in this order."""
        return replace(self, rows=tuple(self.rows[index] for index in places))

    def _identities(self) -> Iterator[tuple[str, str]]:
        return ((row.title, row.text) for row in self.rows)

    def check_types(self, known: Sequence[str]) -> None:
        """Checks that all entities have one of the ``known`` types.

        Raises:
            DataError: an entity has another type.
        """
        for number, row in enumerate(self.rows, 1):
            other = next((name for name in row.types if name not in known), None)
            if other is not None:
                raise DataError(
                    f"{self.source}, text {number:,}: expected entities of the types {', '.join(known)}, which the "
                    f"training texts have, got {other!r}{suggestion(other, known)}"
                )


def read_relations(path: Path | str) -> tuple[str, ...]:
    """Reads names of kinds of relations, one per line.

    Raises:
        DataError: the file is missing, empty or not UTF-8, or has a name twice.
    """
    file = Path(path).expanduser()
    names = [line.strip() for line in read_text(file).split("\n") if line.strip()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{file}: expected each relation once, got {twice!r} twice; remove one")
    return tuple(names)


def read_graph_texts(path: Path | str, relations: Sequence[str]) -> GraphTexts:
    """Reads texts about graphs in the form of AGENDA's files.

    A line has at least five columns, separated by tabs; further columns are ignored. The columns are the title; the
    entities, separated by `` ; ``; their types, ``<method> <task>``; the relations, each as indices of entity, relation
    and entity, ``0 2 1 ; 3 0 1``; and the text, in which ``<method_0>`` is entity 0.

    Args:
        path: the file, or its gzip-compressed form ending in ``.gz``.
        relations: names of the kinds of relations, in the order of their indices.

    Raises:
        DataError: the data are invalid; the message, one line, names the file and the line.
    """
    file = Path(path).expanduser()
    lines = read_text(file).rstrip("\r\n").split("\n")
    rows = tuple(read_row(line, relations, f"{file} line {number:,}") for number, line in enumerate(lines, 1))
    return GraphTexts(rows, tuple(relations), file.name)


def read_row(line: str, relations: Sequence[str], where: str, *, written: bool = True) -> GraphText:
    """Reads a line of a file of AGENDA, with a text if ``written``; ``DataError`` says what is wrong ``where``."""
    columns, needed = line.rstrip("\r\n").split("\t"), len(COLUMNS) - (not written)
    if len(columns) < needed:
        raise DataError(
            f"{where}: expected {needed} columns with tabs between them ({', '.join(COLUMNS[:needed])}), got "
            f"{len(columns)}"
        )
    title, entities, kinds, triples = columns[:4]
    text = columns[4] if written else ""
    if not title.strip():
        raise DataError(f"{where}: expected a title in the first column, got none")
    if written and not text.strip():
        raise DataError(f"{where}: expected a text in the fifth column, got none; remove the line")
    names = tuple(name.strip() for name in re.split(r"(?:^|\s);(?:\s|$)", entities))
    blank = next((number for number, name in enumerate(names) if not name), None)
    if blank is not None:
        raise DataError(
            f"{where}: expected entities with ' ; ' between them, got a blank one as entity {blank}"
        )
    row = GraphText(
        title.strip(),
        names,
        _types(kinds, len(names), where),
        _relations(triples, len(names), relations, where),
        text,
    )
    _check_references(row, where)
    return row


def _types(column: str, count: int, where: str) -> tuple[str, ...]:
    words = [(word, _TYPE.fullmatch(word)) for word in column.split()]
    odd = next((word for word, match in words if match is None), None)
    if odd is not None:
        raise DataError(f"{where}: expected types such as <method> in the third column, got {odd!r}")
    if len(words) != count:
        raise DataError(f"{where}: expected a type for each of {count} entities, got {len(words)}")
    return tuple(match[1] for _, match in words if match is not None)


def _relations(column: str, count: int, names: Sequence[str], where: str) -> tuple[Relation, ...]:
    relations: list[Relation] = []
    for triple in column.split(";") if column.strip() else ():
        words = triple.split()
        if len(words) != 3 or not all(word.isdecimal() and len(word) <= DIGITS for word in words):
            raise DataError(
                f"{where}: expected relations as three numbers, 'entity relation entity', got "
                f"{shown(triple.strip())}"
            )
        head, kind, tail = map(int, words)
        missing = next((end for end in (head, tail) if end >= count), None)
        if missing is not None:
            raise DataError(
                f"{where}: expected relations between entities 0 to {count - 1}, got entity {missing} in "
                f"{triple.strip()!r}"
            )
        if kind >= len(names):
            raise DataError(
                f"{where}: expected relations 0 to {len(names) - 1} ({', '.join(names)}), got {kind} in "
                f"{triple.strip()!r}"
            )
        relations.append((head, kind, tail))
    return tuple(relations)


def _check_references(row: GraphText, where: str) -> None:
    joined = next(
        (word for word in row.text.split() if _REFERENCE.search(word) and not _REFERENCE.fullmatch(word)),
        None,
    )
    if joined is not None:
        raise DataError(f"{where}: expected spaces around the entities in the text, got {shown(joined)}")
    for name, number in _REFERENCE.findall(row.text):
        index = int(number[:DIGITS])
        if len(number) > DIGITS or index >= len(row.entities):
            raise DataError(
                f"{where}: expected entities 0 to {len(row.entities) - 1} in the text, got "
                f"{shortened(f'<{name}_{number}>', 60)}"
            )
        if row.types[index] != name:
            raise DataError(
                f"{where}: expected entity {index} in the text as <{row.types[index]}_{index}>, by its type, got "
                f"<{name}_{number}>"
            )


def roles(train: GraphTexts, validation: GraphTexts, test: GraphTexts) -> Mapping[str, GraphTexts]:
    """The three by name, after making sure that all have types that the training texts have."""
    for texts in (validation, test):
        texts.check_types(train.types)
    keys = {text_key(row.title, row.text) for row in train.rows}
    for name, texts in (("validation", validation), ("test", test)):
        shared = sum(text_key(row.title, row.text) in keys for row in texts.rows)
        if shared:
            warnings.warn(
                f"{texts.source}: {shared:,} of its {len(texts):,} {name} texts are in the training data too, so that "
                "measurements on them flatter",
                DataWarning,
                stacklevel=2,
            )
    return {"train": train, "validation": validation, "test": test}
