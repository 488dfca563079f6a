"""Rows of files that are predicted: read one after the other, and written together with their predictions."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TextIO, cast

from probattn.checks import is_blank, shown
from probattn.cli.options import InputOptions
from probattn.data import DataError, tables
from probattn.data.errors import nearest
from probattn.data.files import read_text, utf8_advice
from probattn.data.rows import PREFIX
from probattn.files.durable import replace_atomically
from probattn.files.spreadsheets import WORKBOOK, Escape, escaped, unescaped, write_workbook

Format = Literal["csv", "tsv", "xlsx", "jsonl", "txt"]
ENDINGS: Mapping[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    f".{WORKBOOK}": "xlsx",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "txt",
}
DELIMITERS = {"csv": ",", "tsv": "\t", "xlsx": ","}
END, MARK = "\r\n", "\ufeff"
HEADER = 50
"""Lines in which a header ends whose names have line breaks."""
STANDARD = "-"
"""Standard input in place of a file."""
TEXT = "text"
"""Column of the lines of a plain text."""

Row = dict[str, Any]


class Style(NamedTuple):
    """How the lines of a delimited file are written: delimiter, end of a line, byte order mark before the first."""

    delimiter: str
    end: str = "\n"
    mark: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of a file, read on demand, each with its place for messages; ``columns`` are those of the first row."""

    name: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[str, Row]]
    style: Style | None = None

    def check_column(self, column: str, option: str) -> None:
        """Raises ``DataError``, which names the columns there are, unless there is this one."""
        if column not in self.columns:
            near = nearest(column, self.columns)
            advice = "" if near is None else f"did you mean {near!r}? "
            listed = ", ".join(map(shown, self.columns[:12]))
            raise DataError(
                f"{self.name}: expected a column {column!r}, got {listed}; {advice}name the column with {option}"
            )


def format_of(path: str, name: str | None = None, option: str | None = None) -> Format:
    """The format of a file, by its ending where it is not named by an option.

    Example:
        >>> format_of("new.jsonl", None, "--format"), format_of("-", "tsv", "--format")
        ('jsonl', 'tsv')
    """
    kind = name or ENDINGS.get(Path(path).suffix.lower())
    if kind not in ENDINGS.values():
        subject = f"{option} {name}" if name else path
        formats = f", or {option} {', '.join(dict.fromkeys(ENDINGS.values()))}" if option else ""
        raise DataError(
            f"{subject}: expected a file that ends in {', '.join(ENDINGS)}{formats}, got {Path(path).suffix or path}"
        )
    return cast(Format, kind)


def check_input(path: str, name: str | None) -> None:
    """Raises ``DataError`` for a format that is not known and for a file that is not there."""
    format_of(path, name, "--format")
    if path != STANDARD:
        try:
            Path(path).expanduser().stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


@contextmanager
def opened(
    path: str,
    kind: Format,
    expected: str | None = None,
    *,
    quotes: bool = True,
    blank: bool = False,
    escape: Escape = "words",
) -> Iterator[Table]:
    """The rows of a file or standard input, with the column ``expected``; ``DataError`` for a bad file or row."""
    if kind == WORKBOOK and path == STANDARD:
        raise DataError(f"--format {kind}: expected the name of a file, got standard input")
    form = _Form(kind, expected, quotes or kind == WORKBOOK, blank, escape == "all")
    with _text_of(path, kind) as file, tables.long_fields():
        yield _table("standard input" if path == STANDARD else path, form, file)


def _text_of(path: str, kind: Format) -> TextIO:
    """A file, a workbook as comma-separated values, or standard input."""
    if kind == WORKBOOK:
        return io.StringIO(read_text(Path(path).expanduser(), workbook=True))
    if path == STANDARD:
        return io.TextIOWrapper(sys.stdin.buffer, "utf-8", newline="")
    try:
        return Path(path).expanduser().open(encoding="utf-8", newline="")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def columns_of(table: Table, options: InputOptions, usual: tuple[str, str | None]) -> tuple[str, str | None]:
    """The columns of the texts and of the second texts, which are there."""
    text = options.text_column or (TEXT if table.columns == (TEXT,) else usual[0])
    table.check_column(text, "--text-column")
    pair = options.pair_column or usual[1]
    if pair is not None:
        table.check_column(pair, "--pair-column")
    return text, pair


class _Form(NamedTuple):
    """How rows are read, as :func:`opened` takes it."""

    kind: Format
    expected: str | None
    quotes: bool
    blank: bool
    escaped: bool


def _table(name: str, form: _Form, file: TextIO) -> Table:
    lines, style = _lines(name, file), None
    top = next(lines, "")
    lines = chain([top.removeprefix(MARK)] * bool(top), lines)
    if form.kind in DELIMITERS:
        separator, lines = _separator(form, lines)
        style = Style(separator, END if top.endswith(END) else "\n", top.startswith(MARK))
    rows = _rows(name, form, lines, style and style.delimiter)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{name}: expected rows, got none")
    return Table(name, tuple(first[1]), chain([first], rows), style)


def _lines(name: str, file: TextIO) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: expected UTF-8 text, got the byte 0x{error.object[error.start]:02x}; "
            f"{utf8_advice(error.object, name)}"
        ) from None


def _rows(name: str, form: _Form, lines: Iterable[str], separator: str | None) -> Iterator[tuple[str, Row]]:
    """Rows with their places; blank lines are passed over, in a plain text those at its end."""
    if separator is not None:
        records = tables.delimited_records(name, lines, separator, quotes=form.quotes)
        read = unescaped if form.escaped else str
        _, header = next(records, (0, []))
        columns = [read(column.strip()) for column in header]
        if columns.count("") > 1:  # a spreadsheet's trailing commas
            columns = [column or f"column {index}" for index, column in enumerate(columns, 1)]
        twice, count = next(iter(Counter(columns).most_common(1)), ("", 0))
        if count > 1:
            raise DataError(f"{name}: expected columns of different names, got {count} {twice!r}")
        for number, record in records:
            tables.check_length(f"{name} line {number}", record, columns)
            yield f"{name} line {number}", dict(zip(columns, map(read, record), strict=True))
    elif form.kind == "txt":
        empty: list[int] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                empty.append(number)
                continue
            if empty and not form.blank:
                raise DataError(
                    f"{name} line {empty[0]}: expected a text in every line, got a blank one; remove it"
                )
            yield from ((f"{name} line {item}", {TEXT: ""}) for item in empty)
            empty.clear()
            yield f"{name} line {number}", {TEXT: line.rstrip("\r\n")}
    else:
        yield from ((f"{name} line {number}", fields) for number, fields in tables.json_objects(name, lines))


def _separator(form: _Form, lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The separator of the header, and all lines."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if (line.strip() and not (form.quotes and "".join(head).count('"') % 2)) or len(head) > HEADER:
            break
    required = () if form.expected is None else (form.expected,)
    usual = DELIMITERS[form.kind]
    return tables.separator_of("".join(head), usual, required, quotes=form.quotes), chain(head, lines)


def is_given(row: Row, column: str) -> bool:
    """Whether a row has anything but white space in a column."""
    value = row.get(column)
    return value is not None and not (isinstance(value, str) and is_blank(value))


def with_answer(row: Row, answer: Mapping[str, Any]) -> Row:
    """A row with its answer, in columns with more prefixes than those of the row that have the same name.

    Example:
        >>> with_answer({"text": "a film", "label": "?"}, {"label": "good", "probability": 0.9})
        {'text': 'a film', 'label': '?', 'predicted_label': 'good', 'probability': 0.9}
    """
    names = _answer_columns(tuple(row), tuple(answer))
    return dict(row) | dict(zip(names, answer.values(), strict=True))


@lru_cache(maxsize=4)
def _answer_columns(columns: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    """Names of an answer's columns, which tell them from those of the inputs in any order."""

    def free(name: str) -> str:
        taken = any(re.fullmatch(f"({PREFIX})*{re.escape(name)}", str(column)) for column in columns)
        return free(PREFIX + name) if taken else name

    return list(map(free, names))


def write_rows(
    rows: Iterable[tuple[Row, Mapping[str, Any]]],
    kind: Format,
    path: Path | None,
    *,
    style: Style | None = None,
    escape: Escape = "words",
) -> int:
    """Writes rows with their predictions, delimited in a ``style``; their number. A file is replaced at the end."""
    count = 0

    def counted() -> Iterator[tuple[Row, Mapping[str, Any]]]:
        nonlocal count
        for pair in rows:
            count += 1
            yield pair

    def write(line: Callable[[str], Any]) -> None:
        for text in _written(kind, counted(), escape, style):
            line(text)

    if kind == WORKBOOK:
        if path is None:
            raise DataError(f"--format {kind}: expected --output with it, got none")
        content = _cells(counted(), "none")
        replace_atomically(path.resolve(), lambda file: write_workbook(file, content))
    elif path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as files are
        write(lambda text: sys.stdout.write(_encoded(text).decode()))
    else:
        replace_atomically(path.resolve(), lambda file: write(lambda text: file.write(_encoded(text))))
    return count


def _written(
    kind: Format, rows: Iterable[tuple[Row, Mapping[str, Any]]], escape: Escape, style: Style | None
) -> Iterator[str]:
    """The lines of rows in a format."""
    if kind == "txt":
        yield from (f"{' '.join(str(next(iter(answer.values()))).split())}\n" for _, answer in rows)
    elif kind == "jsonl":
        yield from (f"{json.dumps(with_answer(row, answer), ensure_ascii=False)}\n" for row, answer in rows)
    else:
        delimiter, end, mark = style or Style(DELIMITERS[kind])
        lines: deque[str] = deque()
        # the csv module quotes the line breaks that its lines end with; ours may end with one alone
        file: Any = SimpleNamespace(write=lambda text: lines.append(f"{text.removesuffix(END)}{end}"))
        table = csv.writer(file, delimiter=delimiter, lineterminator=END)
        yield from [MARK] * mark
        for record in _cells(rows, escape):
            table.writerow(record)
            yield lines.pop()


def _cells(rows: Iterable[tuple[Row, Mapping[str, Any]]], escape: Escape) -> Iterator[list[Any]]:
    """Names of the columns, then the cells of each row."""
    columns: list[str] = []
    for row, answer in rows:
        merged = with_answer(row, answer)
        if not columns:
            columns.extend(merged)
            yield [_cell(name, escape == "all") for name in columns]
        if list(merged) != columns:
            other = next(iter(set(merged) ^ set(columns)), "another order")
            raise DataError(
                f"a table: expected the columns of the first row in every row ({', '.join(columns[:12])}), got a row "
                f"that differs in {other!r}; write to a file that ends in .jsonl"
            )
        guarded = merged if escape == "all" else merged.keys() - row if escape == "words" else ()
        yield [_cell(value, name in guarded) for name, value in merged.items()]


def _encoded(text: str) -> bytes:
    """A line in UTF-8; half of a surrogate pair in a column that is passed on stays the escape that it was."""
    return text.encode(errors="backslashreplace")


def _cell(value: Any, escape: bool) -> str | float:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "; ".join(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return escaped(value) if escape else value
