"""From rows as they stand in a file to a data set: columns, labels and their names, and doubtful labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal

from probattn.checks import is_blank, shown
from probattn.data import checking
from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, DataWarning, nearest

LabelUse = Literal["required", "optional", "ignored"]
"""Labels must be present, may be present, or are not read."""


COLUMN_WORDS: Mapping[str, str] = MappingProxyType(
    {"text": "texts", "text_pair": "second texts", "label": "labels"}
)
"""Contents of a column by its role."""
PREFIX = "predicted_"
"""Of a column of predictions whose name the inputs have."""


@dataclass(frozen=True)
class Columns:
    """Columns to read, and the use of their labels.

    Args:
        text: column of the texts.
        label: column of the labels.
        use: "required" labels must exist; "optional" ones are read if the column exists; "ignored" ones are not read.
        label_names: the allowed classes, in order; None takes them from the data, sorted (numbers by value).
        label_map: class name for each label in the data, if the data name classes differently.
        text_pair: column of the second texts, if the task is about pairs of texts; None for single texts.

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
        """The columns that are read, by role: text, text_pair and, if ``labelled``, label."""
        columns = {"text": self.text}
        if self.text_pair is not None:
            columns["text_pair"] = self.text_pair
        return columns | ({"label": self.label} if labelled else {})

    def find(self, names: Sequence[str], where: str) -> bool:
        """Checks the columns ``names`` of the file ``where``; returns whether labels are to be read.

        Raises:
            DataError: a column is missing or exists twice.
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
    read = [(row.where, _values(row, columns, labelled)) for row in rows]
    every = checking.Rows(
        [values for _, values in read], [where.removeprefix(source).strip() for where, _ in read]
    )
    skipped, filled = checking.empty_fields(every, columns.names(labelled=labelled))
    wheres, full = [read[row][0] for row in filled], every.at(filled)
    if columns.use == "optional" and skipped:
        row = min(row for damage in skipped for row in damage.rows)
        role = next(role for role, value in every.fields[row].items() if is_blank(value))
        raise _empty(read[row][0], role, columns)
    if not filled:
        causes = ", ".join(damage.summary(every.lines) for damage in skipped)
        raise DataError(f"{source}: expected rows, got none{f' but {causes}' if causes else ''}")
    names = _classes([values["label"].strip() for values in full.fields], wheres, columns) if labelled else []
    damages = [damage.message(every.lines) for damage in skipped]
    if columns.use != "optional":
        others = checking.row_damages(full, names if columns.use == "required" else [])
        damages += [damage.message(full.lines) for damage in others]
    for message in damages:
        warnings.warn(f"{source}: {message}", DataWarning, stacklevel=4)
    texts = tuple(values["text"] for values in full.fields)
    pairs = None if columns.text_pair is None else tuple(values["text_pair"] for values in full.fields)
    if not labelled:
        return TextDataset(texts, None, (), source, licence, pairs)
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
    if all(checking.NUMBER.fullmatch(label) for label in others):
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


def text_of(value: Any, column: str, where: str) -> str:
    """A field with words; ``DataError`` names the position of another one."""
    if not isinstance(value, str) or is_blank(value):
        raise DataError(f"{where}: expected text in {column!r}, got {shown(value)}; remove the row")
    return whole_text(where, value, column)


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


def as_text(value: object) -> str:
    """A cell as text; "" for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _label(row: Row, columns: Columns) -> str:
    label = row.label
    if isinstance(label, bool) or not as_text(label):
        return as_text(label)
    named = columns.label_map.keys() | set(columns.label_names or ())
    if isinstance(label, float) and str(label) not in named:
        if not label.is_integer():
            raise _regression(row.where, label, columns)
        label = int(label)
    if not isinstance(label, (str, int, float)):
        raise DataError(
            f"{row.where}: expected a label (text or a whole number) in {columns.label!r}, got {shown(label)}"
        )
    return str(label)
