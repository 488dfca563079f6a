"""A user's own data: CSV, TSV and JSON Lines files, and data sets of the Hugging Face hub (package ``datasets``)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probattn.checks import shown
from probattn.data.checking import Rows
from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, suggestion
from probattn.data.files import read_text
from probattn.data.rows import Columns, Row, as_text, build
from probattn.files.spreadsheets import WORKBOOK

DELIMITERS = (("csv", ","), ("tsv", "\t"), ("tab", "\t"), (WORKBOOK, ","))
SEPARATORS = (",", "\t", ";")
QUOTING: Mapping[bool, Literal[0, 3]] = {True: csv.QUOTE_MINIMAL, False: csv.QUOTE_NONE}
"""The csv module's name for whether fields may stand in double quotes."""
JSON_LINES = ("jsonl", "ndjson")
SUFFIXES = (*(suffix for suffix, _ in DELIMITERS), *JSON_LINES)
"""Endings of the files that can be read, without the dot."""

DECIDED = {"decision", "why", "reviewed", "likeliest"}
"""Columns of a file of decisions."""
OWN_LICENCE = "the file owner's"


def is_table(source: str) -> bool:
    """True for the name of a file of a known format."""
    return Path(source).suffix.removeprefix(".").lower() in SUFFIXES


def read_table(path: Path | str, columns: Columns | None = None, *, quotes: bool = True) -> TextDataset:
    r"""Reads texts and labels from a file.

    A CSV (comma) or TSV (tab) file begins with a line that names its columns. If another separator (comma, tab or
    semicolon) separates the expected names in this line, the file is read with that one. A JSON Lines file holds one
    object per line. The text is UTF-8. Blank lines are ignored; rows without text or label are skipped, or an error if
    labels are "optional" (inputs to predict). If all labels are whole numbers, 1.0 is the class 1.

    Args:
        path: the file; its extension (.csv, .tsv, .tab, .xlsx, .jsonl, .ndjson) determines the format. The first
            worksheet of a workbook is read (package openpyxl).
        columns: columns to read; by default "text" and "label", both required.
        quotes: whether double quotes may enclose fields of a CSV or TSV file; False reads them as plain characters.

    Returns:
        The rows in the order of the file.

    Raises:
        DataError: the file is missing, empty, malformed or not UTF-8, a column is missing, a label is unknown, or the
            labels are targets of regression; the message names the file, the line and what to do.

    Warns:
        DataWarning: the number of skipped rows, and their lines.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "reviews.csv"
        ...     _ = path.write_text("text,label\nGreat fun,good\nDull,bad\n")
        ...     data = read_table(path)
        >>> data.texts, data.labels, data.label_names
        (('Great fun', 'Dull'), (1, 0), ('bad', 'good'))
    """
    path = Path(path)
    columns = columns or Columns()
    with long_fields():
        table = open_table(path, columns.names(labelled=columns.use == "required").values(), quotes=quotes)
        labelled = columns.find(table.names, table.header)
        names = columns.names(labelled=labelled)

        def rows() -> Iterator[Row]:
            for where, fields in table.rows:
                if fields is None:
                    yield Row(where, None)
                    continue
                values = {role: field_of(fields, name, where) for role, name in names.items()}
                yield Row(where, values["text"], values.get("label"), values.get("text_pair"))

        return build(rows(), columns, labelled, source=str(path), licence=OWN_LICENCE)


def read_rows(path: Path | str, columns: Columns) -> Rows:
    """Texts and labels of a file as they stand there, empty ones too; ``DataError`` for a file that cannot be read."""
    names = columns.names(labelled=True)
    fields, lines = [], []
    with long_fields():
        table = open_table(Path(path), names.values())
        columns.find(table.names, table.header)
        for where, values in table.rows:
            lines.append(where.removeprefix(str(path)).strip())
            cells = {role: (values or {}).get(name) for role, name in names.items()}
            fields.append({role: as_text(value) for role, value in cells.items()})
    return Rows(fields, lines)


class Table(NamedTuple):
    """A file as rows: where its header is, names of the columns, and place and fields of each (None: all blank)."""

    header: str
    names: list[str]
    rows: Iterator[tuple[str, Mapping[str, Any] | None]]


def open_table(path: Path, required: Collection[str], *, quotes: bool = True) -> Table:
    """Opens a file of rows, read one by one within :func:`long_fields`; ``required`` columns tell the separator."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in SUFFIXES:
        raise other_format(path)
    text = read_text(path)
    if kind in JSON_LINES:
        table = _open_json_lines(path, text)
    else:
        table = _open_delimited(path, text, dict(DELIMITERS)[kind], required, quotes or kind == WORKBOOK)
    if set(table.names) >= DECIDED and "reviewed" not in required:
        raise DataError(
            f"{path}: expected true labels, got decisions of `predict --policy`, whose labels are predictions; "
            "`probattn review RUN FILE --output labels.csv` writes the classes that people decided"
        )
    return table


def field_of(fields: Mapping[str, Any], name: str, where: str) -> Any:
    """A field of a row; ``DataError`` where the row has none."""
    if name not in fields:
        raise DataError(f"{where}: expected a field {name!r}, got none{suggestion(name, fields)}")
    return fields[name]


def other_format(path: Path | str) -> DataError:
    """The error of a file whose ending names no format that is read."""
    return DataError(
        f"{path}: expected a file that ends in {', '.join('.' + suffix for suffix in SUFFIXES)}, "
        f"got {Path(path).suffix or 'no ending'}; export it as one of these"
    )


def _open_delimited(path: Path, text: str, usual: str, required: Collection[str], quotes: bool) -> Table:
    separator = separator_of(text, usual, required, quotes=quotes)
    records = delimited_records(path, io.StringIO(text, newline=""), separator, quotes=quotes)
    first = next(records, None)
    if first is None:
        raise DataError(f"{path}: expected a line that names the columns, got blank lines")
    header_line, header = first
    names = [name.strip() for name in header]

    def rows() -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        for line, record in records:
            where = f"{path} line {line}"
            if not any(map(str.strip, record)):
                yield where, None
                continue
            check_length(where, record, names)
            yield where, dict(zip(names, record, strict=True))

    return Table(f"{path} line {header_line}", names, rows())


def check_length(where: str, record: Sequence[str], names: Sequence[str]) -> None:
    """Raises ``DataError`` unless a record has a field for every column."""
    if len(record) != len(names):
        raise DataError(
            f"{where}: expected {len(names)} columns ({', '.join(map(shown, names[:12]))}), got {len(record)}; "
            "put a text that holds the separator, a quote or a line break in double quotes"
        )


def separator_of(text: str, usual: str, required: Collection[str], *, quotes: bool) -> str:
    """The separator of a header that has the columns, and else the most of them; the usual one before others."""

    def fit(separator: str) -> tuple[bool, int]:
        records = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=QUOTING[quotes])
        names = [name.strip() for name in next(filter(None, records), [])]
        return set(names).issuperset(required), len(names)

    return max((usual, *SEPARATORS), key=fit)


def delimited_records(
    path: Path | str, lines: Iterable[str], delimiter: str, *, quotes: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each record that is not blank; ``path`` is for messages."""
    reader = csv.reader(lines, delimiter=delimiter, quoting=QUOTING[quotes], strict=True)
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{path} line {line}: malformed record ({error}); double the quotes inside a quoted text, or set "
                "'quotes: false' if quotes are plain characters in this file"
            ) from None
        if record is None:
            return
        if record:
            yield line, record


@contextmanager
def long_fields() -> Iterator[None]:
    """Lifts the csv module's limit of 131,072 characters a field, and puts it back."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _open_json_lines(path: Path, text: str) -> Table:
    objects = json_objects(path, text.split("\n"))
    first = next(objects, None)
    if first is None:
        raise DataError(f"{path}: expected one JSON object a line, got blank lines")
    rows = ((f"{path} line {line}", fields) for line, fields in chain([first], objects))
    return Table(f"{path} line {first[0]}", list(first[1]), rows)


def json_objects(path: Path | str, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of each line that is not blank; ``path`` is for messages."""
    for line, content in enumerate(lines, start=1):
        if not content.strip():
            continue
        try:
            fields = json.loads(content)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path} line {line}: malformed JSON at column {error.colno} ({error.msg}); "
                'expected one object a line, like {"text": "...", "label": "..."}'
            ) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {line}: JSON that cannot be read ({error})") from None
        if not isinstance(fields, dict):
            raise DataError(
                f'{path} line {line}: expected a JSON object, like {{"text": "...", "label": "..."}}, '
                f"got {shown(fields)}"
            )
        yield line, fields


PREFIX = "hub:"


def read_hub(
    name: str, columns: Columns | None = None, *, split: str = "train", configuration: str | None = None
) -> TextDataset:
    """Reads a split of a data set of the Hugging Face hub, or of a local folder that ``datasets`` can read.

    Args:
        name: ``owner/name``, without ``hub:``.
        columns: which columns to read; by default "text" and "label", both required.
        split: name of the split.
        configuration: name of the configuration, if the data set has several.

    Returns:
        The rows in the order of the split. Classes have the data set's names; rows with label -1 are unlabelled.

    Raises:
        DataError: ``datasets`` is not installed, the data set cannot be loaded (for instance without network and copy
            in the cache), or it has no such split or column, an empty text or an unknown label.
    """
    columns = columns or Columns()
    source = f"{PREFIX}{name} ({split})"
    table = load_hub(name, split, configuration, source)
    labelled = columns.find(list(table.column_names), source)
    names = getattr(table.features[columns.label], "names", None) if labelled else None
    if names and columns.label_names is None:
        label_names = tuple(columns.label_map.get(item, item) for item in names)
        columns = replace(columns, label_names=label_names)

    def rows() -> Iterator[Row]:
        texts = table[columns.text]
        nothing = [None] * len(table)
        labels = table[columns.label] if labelled else nothing
        pairs = nothing if columns.text_pair is None else table[columns.text_pair]
        for number, (text, label, pair) in enumerate(zip(texts, labels, pairs, strict=True), start=1):
            where = f"{source} row {number}"
            yield Row(where, text, _named(label, names, where) if names else label, pair)

    licence = table.info.license or "see its page on the hub"
    return build(rows(), columns, labelled, source=source, licence=str(licence))


def load_hub(name: str, split: str, configuration: str | None, source: str) -> Any:
    """A split of a data set of the hub as ``datasets`` gives it; ``DataError`` as for :func:`read_hub`."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{source}: expected the package datasets, got no such package; install it: pip install 'probattn[data]'"
        ) from None
    try:
        splits = datasets.load_dataset(name, configuration)
    except Exception as error:
        raise DataError(
            f"{source}: cannot be loaded ({type(error).__name__}: {error}); check the name and the network, "
            "or fetch it once where there is one"
        ) from error
    if split not in splits:
        listed = ", ".join(map(repr, splits))
        raise DataError(f"{source}: expected a split {split!r}, got {listed}{suggestion(split, splits)}")
    return splits[split]


def _named(label: Any, names: list[str], where: str) -> str:
    if not isinstance(label, int) or not 0 <= label < len(names):
        raise DataError(
            f"{where}: expected a label in 0..{len(names) - 1}, got {label} (-1 marks rows without label); "
            "choose a split with labels"
        )
    return names[label]
