"""Columns of texts and labels in a file, recognised by name and content, and remarks on the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from probattn.checks import shortened, shown
from probattn.cli.rows import ENDINGS, Table, opened
from probattn.data import DataError, read_table
from probattn.data.rows import NUMBER, Columns, class_names

SAMPLE = 2000
"""Rows of a file by which columns are recognised."""
MOST_CLASSES = 200
"""Most different values of a column that is taken for labels."""
LISTED = 12
"""Classes, or further columns, that are listed."""
NAME = 60
"""Characters of a class's name in a list."""
TEXTS = ("text", "sentence", "message", "review", "comment", "content", "body", "question", "title")
PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "answer"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("text", "text_pair"),
)
"""Usual names of the columns of pairs of texts."""
LABELS = ("label", "class", "category", "target", "gold", "sentiment", "intent", "topic", "department", "y")
"""Usual names of columns, which take precedence over their content."""


class Recognised(NamedTuple):
    """The columns of a file, in words too, remarks on them, a line each, and whether training takes its labels."""

    text: str
    pair: str | None
    label: str
    description: str
    remarks: tuple[str, ...]
    trainable: bool


def recognise(source: str, text: str | None, label: str | None, pair: str | None) -> Recognised:
    """The columns of a file of texts and labels, as far as they are not named.

    Raises:
        DataError: the file cannot be read, lacks a named column, or has no column that may be the labels.

    Warns:
        DataWarning: what training on the file would warn of.
    """
    kind = ENDINGS[Path(source).suffix.lower()]
    if kind == "txt":
        raise DataError(
            f"{source}: expected a file with a column of texts and one of labels (.csv, .tsv, .jsonl), got plain text"
        )
    with opened(source, kind) as table:
        rows = [row for _, row in islice(table.rows, SAMPLE)]
        text, pair = _pair_columns(table, text, pair)
        text = text or _text_column(table, rows)
        table.check_column(text, "--text-column")
        if pair is not None:
            table.check_column(pair, "--pair-column")
        values = {name: _values(rows, name) for name in table.columns if name not in (text, pair)}
        candidates = [] if label else _label_columns(table, values, text, len(rows))
        label = label or candidates[0]
        table.check_column(label, "--label-column")
    counts, remarks = _classes(source, text, pair, label)
    size = f"{sum(counts.values()):,} rows"
    trainable = bool(counts)
    if not trainable:
        counts = {name: values[label].count(name) for name in class_names(values[label])}
        size = f"the first {SAMPLE:,} rows" if len(rows) == SAMPLE else f"{len(rows):,} rows"
    texts = (
        f"column {shown(text)} of texts"
        if pair is None
        else f"columns {shown(text)} and {shown(pair)} of pairs of texts"
    )
    description = f"{texts}, column {shown(label)} of labels with {_counted(counts)} in {size}"
    others = [_column_in_words(name, values[name]) for name in candidates[1:]]
    other_columns = (
        f"other columns that may be the labels: {_first(others)}; choose one with --label-column, or with "
        "data.train.label in the recipe"
    )
    return Recognised(
        text, pair, label, description, (*([other_columns] if others else []), *remarks), trainable
    )


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The labels that a column has, as text; empty ones are left out."""
    cells = (row.get(name) for row in rows)
    return [cell for cell in ("" if value is None else str(value).strip() for value in cells) if cell]


def _classes(source: str, text: str, pair: str | None, label: str) -> tuple[dict[str, int], list[str]]:
    """Rows of each class as training reads them, none where it refuses the file; and what is odd about them."""
    try:
        counts = read_table(source, Columns(text, label, text_pair=pair)).require_classes().counts()
    except DataError as error:
        return {}, [
            f"training refuses these labels: {shortened(str(error))}; --label-column names another column"
        ]
    single = [shown(name) for name, count in counts.items() if count == 1]
    if single:
        return counts, [
            (
                f"{len(single):,} of {len(counts):,} classes have one row ({_first(single)}), to learn from or to "
                "measure on, not both: add rows, join classes with label_map, or name another column with "
                "--label-column"
            )
        ]
    if len(counts) > 2 and all(NUMBER.fullmatch(name) for name in counts):
        return counts, [
            (
                f"the labels are numbers ({min(counts, key=float)} to {max(counts, key=float)}), learned as classes "
                "without an order; ratings are for a recipe of numbers, with a section `regression`"
            )
        ]
    return counts, []


def _counted(counts: Mapping[str, int]) -> str:
    """Classes with their rows, in order; of many the largest."""
    if len(counts) <= LISTED:
        return ", ".join(f"{shortened(name, NAME)} ({number:,})" for name, number in counts.items())
    largest = sorted(counts, key=lambda name: -counts[name])[: LISTED // 2]
    listed = ", ".join(f"{shortened(name, NAME)} ({counts[name]:,})" for name in largest)
    return f"{len(counts):,} classes, {listed} and {len(counts) - len(largest):,} more,"


def _first(items: Sequence[str]) -> str:
    return ", ".join(items[: LISTED // 2]) + (", ..." if len(items) > LISTED // 2 else "")


def _column_in_words(name: str, values: Sequence[str]) -> str:
    different = set(values)
    if all(map(NUMBER.fullmatch, different)):
        numbers = sorted(different, key=float)
        return f"{shown(name)} ({len(different):,} numbers, {numbers[0]} to {numbers[-1]})"
    return f"{shown(name)} ({len(different):,} values)"


def _pair_columns(table: Table, text: str | None, pair: str | None) -> tuple[str | None, str | None]:
    """Columns of pairs with usual names, as far as they are not given; None for what is not recognised.

    Texts of a given column are single ones unless the second is given too.
    """
    if text is not None:
        return text, pair
    names = {name.lower(): name for name in table.columns}
    for first, second in PAIRS:
        if first in names and second in names:
            columns = names[first], names[second]
            if text in {None, columns[0]} and pair in {None, columns[1]}:
                return columns
    return text, pair


def _text_column(table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    """A column of a usual name, or else the one of the longest texts."""
    usual_name = next((name for usual in TEXTS for name in table.columns if name.lower() == usual), None)
    return usual_name or max(table.columns, key=lambda name: sum(len(str(row.get(name))) for row in rows))


def _label_columns(table: Table, values: Mapping[str, Sequence[str]], text: str, rows: int) -> list[str]:
    """The columns that may be the labels, the likeliest first.

    These are columns of a usual name, of a name with a usual word in it, and others of 2 to ``MOST_CLASSES`` different
    values at most half as many as rows; whole numbers and words before fractions, few values before many.
    """
    different = {name: set(column) for name, column in values.items()}
    limit = min(MOST_CLASSES, rows // 2)

    def rank(name: str) -> tuple[int, int, int, int]:
        words = re.findall(r"[^\W_]+", name.lower())
        exact = next((order for order, usual in enumerate(LABELS) if name.lower() == usual), len(LABELS))
        named = exact < len(LABELS) or bool(set(words) & set(LABELS))
        fractions = any(
            NUMBER.fullmatch(value) and not float(value).is_integer() for value in different[name]
        )
        return exact, not named, fractions, len(different[name])

    candidates = [name for name in different if 2 <= len(different[name]) <= limit or name.lower() in LABELS]
    if not candidates:
        listed = (
            ", ".join(f"{name!r} ({len(cells)} different values)" for name, cells in different.items())
            or "none"
        )
        raise DataError(
            f"{table.name}: expected a column of labels beside {text!r}, with 2 to {limit} different values, got "
            f"{listed}; name the columns with --text-column and --label-column"
        )
    return sorted(candidates, key=rank)
