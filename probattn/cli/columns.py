"""Columns of a file of texts and labels: recognised by their names and content, asked for on a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import typer

from probattn.checks import shown
from probattn.cli.rows import ENDINGS, Table, opened
from probattn.data.checking import NUMBER
from probattn.data.errors import DataError

SAMPLE = 2000
"""Rows of a file by which columns are recognised."""
MOST_CLASSES = 200
"""Most different values of a column that is taken for labels."""
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
LABELS = (
    *("label", "class", "category", "target", "gold", "sentiment", "intent", "topic", "department", "y"),
    *("team", "queue"),
)
"""Usual names of columns, which take precedence over their content."""
UNUSUAL = {
    "channel",
    "source",
    "status",
    "priority",
    "language",
    "country",
    "region",
    "date",
    "time",
    "user",
    "id",
}
"""Words in the names of other columns of few values, which are the labels last."""


class Recognised(NamedTuple):
    """The columns of a file, and other columns that may be the labels, in words."""

    text: str
    pair: str | None
    label: str
    others: tuple[str, ...]


def recognise(
    source: str, text: str | None, label: str | None, pair: str | None, *, asks: bool = True
) -> Recognised:
    """The columns of texts and labels that are not named, in doubt by asking; ``DataError`` where one is missing."""
    kind = ENDINGS.get(Path(source).suffix.lower(), "txt")
    if kind == "txt":
        ending = Path(source).suffix.lower()
        got = "plain text" if ending == ".txt" else f"one that ends in {ending}" if ending else "no ending"
        advice = {".gz": "; unpack it first: gunzip", ".xls": "; save it as .xlsx or .csv"}.get(ending, "")
        raise DataError(
            f"{source}: expected a file with a column of texts and one of labels (.csv, .tsv, .xlsx, .jsonl), got {got}"
            f"{advice}"
        )
    if (empty := next((name for name in (text, label, pair) if name == ""), None)) is not None:
        raise DataError(f"{source}: expected the name of a column, got {empty!r}")
    if label is not None and label in (text, pair):
        raise DataError(f"{source}: expected different columns of texts and labels, got {label!r} for both")
    asks = asks and sys.stdin.isatty() and sys.stdout.isatty()
    with opened(source, kind) as table:
        rows = [row for _, row in islice(table.rows, SAMPLE)]
        text, pair = _pair_columns(table, text, pair)
        texts = [text] if text else _text_columns(table, rows)
        text = _choice("texts", texts, texts) if asks and len(texts) > 1 else texts[0]
        table.check_column(text, "--text-column")
        if pair is not None:
            table.check_column(pair, "--pair-column")
        values = {name: _values(rows, name) for name in table.columns if name not in (text, pair)}
        if label:
            table.check_column(label, "--label-column")
        candidates = [label] if label else _label_columns(table, values, text, len(rows))
        usual = [name.lower() in LABELS for name in candidates]
        described = [_column_in_words(name, values.get(name, ())) for name in candidates]
        if asks and len(candidates) > 1 and usual[:2] != [True, False]:
            label = _choice("labels", candidates, described)
    others = () if label else tuple(described[1:])
    return Recognised(text, pair, label or candidates[0], others)


def _choice(role: str, columns: Sequence[str], described: Sequence[str]) -> str:
    """The column that a person names, by its number or name; the first by default."""
    for number, words in enumerate(described, 1):
        typer.echo(f"{number}  {words}")
    while True:
        answer: str = typer.prompt(f"Which column has the {role}?", default="1")
        if answer in columns:
            return answer
        if answer.isdecimal() and 0 < int(answer) <= len(columns):
            return columns[int(answer) - 1]
        typer.echo(f"expected a number from 1 to {len(columns)}, or the name of one of these columns")


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The labels that a column has, as text; empty ones are left out."""
    cells = (row.get(name) for row in rows)
    return [cell for cell in ("" if value is None else str(value).strip() for value in cells) if cell]


def _column_in_words(name: str, values: Sequence[str]) -> str:
    different = set(values)
    if different and all(map(NUMBER.fullmatch, different)):
        numbers = sorted(different, key=float)
        return f"{shown(name)} ({len(different):,} numbers, {numbers[0]} to {numbers[-1]})"
    return f"{shown(name)} ({len(different):,} values)"


def _pair_columns(table: Table, text: str | None, pair: str | None) -> tuple[str | None, str | None]:
    """Columns of pairs with usual names, unless that of the texts is given; None for what is not recognised."""
    if text is not None:
        return text, pair
    names = {name.lower(): name for name in table.columns}
    for first, second in PAIRS:
        if first in names and second in names and pair in {None, names[second]}:
            return names[first], names[second]
    return text, pair


def _text_columns(table: Table, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The column of a usual name, or else those of the longest texts, half as long at least."""
    usual_name = next((name for usual in TEXTS for name in table.columns if name.lower() == usual), None)
    if usual_name:
        return [usual_name]
    sizes = {name: sum(len(str(row.get(name))) for row in rows) for name in table.columns}
    longest = max(sizes.values())
    return sorted((name for name in sizes if 2 * sizes[name] >= longest), key=lambda name: -sizes[name])


def _label_columns(table: Table, values: Mapping[str, Sequence[str]], text: str, rows: int) -> list[str]:
    """The columns that may be the labels: of a usual name or of few different values, the likeliest first."""
    different = {name: set(column) for name, column in values.items()}
    limit = min(MOST_CLASSES, rows // 2)

    def rank(name: str) -> tuple[int, ...]:
        words = re.findall(r"[^\W_]+", name.lower())
        exact = next((order for order, usual in enumerate(LABELS) if name.lower() == usual), len(LABELS))
        named = exact < len(LABELS) or bool(set(words) & set(LABELS))
        other = bool(set(words) & UNUSUAL) and not named
        fractions = any(
            NUMBER.fullmatch(value) and not float(value).is_integer() for value in different[name]
        )
        return exact, not named, fractions, other, len(different[name])

    usual = [name for name in different if different[name] and name.lower() in LABELS]
    candidates = [name for name in different if 2 <= len(different[name]) <= limit or name in usual]
    if not candidates:
        listed = (
            ", ".join(f"{name!r} ({len(cells)} different values)" for name, cells in different.items())
            or "none"
        )
        advice = "name the columns with --text-column and --label-column"
        if not different:
            advice = "columns are separated by commas, tabs or semicolons"
        raise DataError(
            f"{table.name}: expected a column of labels beside {text!r}, with 2 to {limit} different values, got "
            f"{listed}; {advice}"
        )
    return sorted(candidates, key=rank)
