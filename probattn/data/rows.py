"""From rows as they stand in a file to a data set: columns, labels and their names, and doubtful labels."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import Literal

from probattn.checks import shown
from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, DataWarning, nearest
from probattn.data.identity import text_key

LabelUse = Literal["required", "optional", "ignored"]
"""Labels must be present, may be present, or are not read."""


COLUMN_WORDS: Mapping[str, str] = MappingProxyType(
    {"text": "texts", "text_pair": "second texts", "label": "labels"}
)
"""Contents of a column by its role."""


PLACES = 5
"""Places of skipped rows that a warning names."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """The columns to read, and the use of their labels.

    Args:
        text: column of the texts.
        label: column of the labels.
        use: "required" labels must be there; "optional" ones are read where the column exists; "ignored" ones are not
            looked at.
        label_names: the classes that labels may name, in order; None takes them from the data, sorted (numbers by
            value).
        label_map: label in the data to class name, for data that names its classes otherwise.
        text_pair: column of the second texts, where the task is about pairs of texts; None for single ones.

    Raises:
        DataError: two of the columns are the same.
    """

    text: str = "text"
    label: str = "label"
    use: LabelUse = "required"
    label_names: tuple[str, ...] | None = None
    label_map: Mapping[str, str] = field(default_factory=dict)
    text_pair: str | None = None

    def __post_init__(self) -> None:
        names = self.names(labelled=self.use != "ignored")
        for (first, name), (second, other) in combinations(names.items(), 2):
            if name == other:
                raise DataError(
                    f"columns: expected two different ones, got {name!r} for both {first} and {second}"
                )

    def names(self, *, labelled: bool) -> dict[str, str]:
        """The columns that are read, by what they are for: text, text_pair and, if ``labelled``, label."""
        columns = {"text": self.text}
        if self.text_pair is not None:
            columns["text_pair"] = self.text_pair
        return columns | ({"label": self.label} if labelled else {})

    def find(self, names: Sequence[str], where: str) -> bool:
        """Checks the columns ``names`` of the place ``where``; returns whether labels are to be read.

        Raises:
            DataError: a column is missing or there twice.
        """
        for role, name in self.names(labelled=self.use != "ignored").items():
            if names.count(name) > 1:
                raise DataError(f"{where}: expected one column {name!r}, got {names.count(name)}")
            if name not in names and (role != "label" or self.use == "required"):
                listed = ", ".join(shown(name) for name in names[:12])
                near = nearest(name, names)
                advice = "" if near is None else f"did you mean {near!r}? "
                raise DataError(
                    f"{where}: expected a column {name!r}, got {listed}; {advice}"
                    f"name the column of the {COLUMN_WORDS[role]} with '{role}: {near or 'NAME'}'"
                )
        return self.use != "ignored" and self.label in names


@dataclass(frozen=True)
class Row:
    """A text, its label and its second text as they stand in the data, and their place in it."""

    where: str
    text: object
    label: object = None
    pair: object = None


def build(rows: Iterable[Row], columns: Columns, labelled: bool, *, source: str, licence: str) -> TextDataset:
    """A data set of checked rows, without labels unless ``labelled``; ``DataError`` names the place of a wrong row.

    Rows with an empty field are skipped with a ``DataWarning``, and refused where labels are "optional".
    """
    wheres: list[str] = []
    fields: list[dict[str, str]] = []
    skipped: dict[str, list[str]] = {}
    for row in rows:
        values = _values(row, columns, labelled)
        empty = next((role for role, value in values.items() if not value.strip()), None)
        if empty is None:
            wheres.append(row.where)
            fields.append(values)
        elif columns.use == "optional":
            raise _empty(row.where, empty, columns)
        else:
            skipped.setdefault(empty, []).append(row.where.removeprefix(source).strip())
    if not fields:
        raise DataError(f"{source}: expected rows, got none{_listed(skipped, columns, ' but ')}")
    if skipped:
        count = sum(map(len, skipped.values()))
        warnings.warn(
            f"{source}: {count:,} of {count + len(fields):,} rows are skipped: {_listed(skipped, columns)}",
            DataWarning,
            stacklevel=4,
        )
    texts = tuple(values["text"] for values in fields)
    pairs = None if columns.text_pair is None else tuple(values["text_pair"] for values in fields)
    if not labelled:
        return TextDataset(texts, None, (), source, licence, pairs)
    names = _classes([values["label"].strip() for values in fields], wheres, columns)
    if columns.use == "required":
        warn_about_labels(source, fields, names, wheres)
    label_names = class_names(names) if columns.label_names is None else columns.label_names
    index = {name: number for number, name in enumerate(label_names)}
    for name, where in zip(names, wheres, strict=True):
        if name not in index:
            raise unknown_label(where, name, label_names)
    return TextDataset(texts, tuple(index[name] for name in names), label_names, source, licence, pairs)


def _values(row: Row, columns: Columns, labelled: bool) -> dict[str, str]:
    """The fields of a row as text, by what their columns are for; "" where there is nothing."""
    values = {"text": _text(row.where, row.text, columns.text)}
    if columns.text_pair is not None:
        values["text_pair"] = _text(row.where, row.pair, columns.text_pair)
    return values | ({"label": _label(row, columns)} if labelled else {})


def _empty(where: str, role: str, columns: Columns) -> DataError:
    name = columns.names(labelled=True)[role]
    if role == "label":
        return DataError(
            f"{where}: expected a label in {name!r}, got an empty one; remove the row or give a label"
        )
    return DataError(f"{where}: expected text in {name!r}, got an empty one; remove the row")


def _listed(skipped: Mapping[str, Sequence[str]], columns: Columns, before: str = "") -> str:
    """The numbers of rows without a text or a label, and the places of the first; "" without any."""
    names = columns.names(labelled=True)
    counts = [
        f"{len(lines):,} without {'a label' if role == 'label' else 'text'} in {names[role]!r} "
        f"({', '.join(lines[:PLACES])}{', ...' if len(lines) > PLACES else ''})"
        for role, lines in skipped.items()
    ]
    return before + ", ".join(counts) if counts else ""


def unknown_label(where: str, name: str, label_names: Sequence[str]) -> DataError:
    """The error of a label that training does not know."""
    listed = ", ".join(repr(label) for label in label_names[:12]) + (", ..." if len(label_names) > 12 else "")
    near = nearest(name, label_names)
    advice = "" if near is None else f"did you mean {near!r}? "
    return DataError(
        f"{where}: expected a label of the training data ({listed}), got {name!r}; {advice}"
        "correct it, or rename it with 'label_map'"
    )


def _classes(labels: Sequence[str], wheres: Sequence[str], columns: Columns) -> list[str]:
    """Names of the classes: labels as they stand or renamed; 1.0 is the class 1 where all are whole numbers."""
    mapped = columns.label_map.keys() | set(columns.label_names or ())
    others = set(labels) - mapped
    integers: dict[str, str] = {}
    if all(NUMBER.fullmatch(label) for label in others):
        for label, where in zip(labels, wheres, strict=True):
            if label in others and not _is_whole(label):
                if not float(label).is_integer():
                    raise _regression(where, label, columns)
                integers[label] = label if label.lstrip("+-").isdigit() else str(int(float(label)))
    names = [integers.get(label, label) for label in labels]
    return [columns.label_map.get(label, label) for label in names]


def _regression(where: str, label: object, columns: Columns) -> DataError:
    return DataError(
        f"{where}: expected a label (text or a whole number) in {columns.label!r}, got {label}; numbers between whole "
        "ones are targets of regression: sort them into classes first, or name each as a class with 'label_map'"
    )


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order: by value if all are whole numbers, else as text."""
    distinct = set(labels)
    if all(_is_whole(label) for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def _is_whole(label: str) -> bool:
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


def _text(where: str, text: object, column: str) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(f"{where}: expected text in {column!r}, got {shown(text)}")
    return whole_text(where, text, column)


def whole_text(where: str, text: str, column: str) -> str:
    """A text; ``DataError`` names the place of one with half of a surrogate pair, which no tokenizer reads."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise DataError(
            f"{where}: expected text in {column!r}, got half of a surrogate pair, {code}, "
            f"at character {error.start + 1}; remove it"
        ) from None
    return text


def _label(row: Row, columns: Columns) -> str:
    label = row.label
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float):
        if not label.is_integer():
            raise _regression(row.where, label, columns)
        label = int(label)
    if not isinstance(label, (str, int)):
        raise DataError(
            f"{row.where}: expected a label (text or a whole number) in {columns.label!r}, got {shown(label)}"
        )
    return str(label)


MOST = 3
"""Examples that a warning names."""


def contradictions(
    keys: Sequence[str], labels: Sequence[str], wheres: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The texts that have several labels: by their key, each label and where it stands first."""
    seen: dict[str, dict[str, str]] = {}
    for key, label, where in zip(keys, labels, wheres, strict=True):
        seen.setdefault(key, {}).setdefault(label, where)
    return {key: first for key, first in seen.items() if len(first) > 1}


def case_variants(names: Iterable[str]) -> list[list[str]]:
    """Names that differ in case or inner blanks alone, those of one class together."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(" ".join(name.casefold().split()), []).append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def warn_about_labels(
    source: str, rows: Sequence[Mapping[str, str]], names: Sequence[str], wheres: Sequence[str]
) -> None:
    """Warns of labels that cannot all be right, or of classes that may be one, in a line each."""
    positions = [where.removeprefix(source).strip() for where in wheres]
    for message in (
        *_blanks([row["label"] for row in rows], positions),
        *_variants(names),
        *_contradicting(rows, names, positions),
    ):
        warnings.warn(f"{source}: {message}", DataWarning, stacklevel=5)


def _blanks(labels: Sequence[str], positions: Sequence[str]) -> Iterator[str]:
    padded = [
        (label, where) for label, where in zip(labels, positions, strict=True) if label != label.strip()
    ]
    if padded:
        examples = _first(f"{shown(label)} in {where}" for label, where in dict(reversed(padded)).items())
        yield (
            f"labels with blanks around them: {len(padded):,} ({examples}); they are read without the blanks: remove "
            "these from the file, which other programs read as further classes"
        )


def _variants(names: Sequence[str]) -> Iterator[str]:
    groups, counts = case_variants(names), Counter(names)
    if groups:
        listed = _first(" and ".join(f"{name!r} ({counts[name]:,})" for name in group) for group in groups)
        frequent = max(groups[0], key=counts.__getitem__)
        renamed = ", ".join(f"{shown(name)}: {shown(frequent)}" for name in groups[0] if name != frequent)
        yield (
            f"classes that differ in case or blanks alone: {listed}; they are different classes: make them one in the "
            f"file, or with `label_map: {{{renamed}}}`"
        )


def _contradicting(
    rows: Sequence[Mapping[str, str]], names: Sequence[str], positions: Sequence[str]
) -> Iterator[str]:
    keys = [text_key(row["text"], row.get("text_pair")) for row in rows]
    repeated = contradictions(keys, names, positions)
    if repeated:
        examples = _first(
            " and ".join(f"{name!r} in {where}" for name, where in labels.items())
            for labels in repeated.values()
        )
        yield (
            f"texts with different labels in different rows: {len(repeated):,} ({examples}); not all of them can be "
            "learned: correct the labels, or leave each text in once"
        )


def _first(examples: Iterable[str]) -> str:
    """The first examples, and whether there are more."""
    listed = list(examples)
    return "; ".join(listed[:MOST]) + ("; ..." if len(listed) > MOST else "")
