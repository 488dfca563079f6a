"""Spreadsheets: cells that one would take for a formula, and workbooks of Excel."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal
from zipfile import BadZipFile

from probattn.checks import PlainWarning, optional, shown

Escape = Literal["words", "all", "none"]
"""Which cells of a table are escaped: words of predictions, those of the input too, or none."""

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML, and so a workbook, cannot hold."""
_FORMULA, _ESCAPED = re.compile(r"'*[=+\-@\t\r]"), re.compile(r"'+[=+\-@\t\r]")


def escaped(cell: str) -> str:
    """A cell that a spreadsheet shows as it is: with an apostrophe before ``= + - @``, a tab or a carriage return.

    Numbers stay, and so that :func:`unescaped` is exact, a cell that looks escaped gets one more apostrophe.

    Example:
        >>> [escaped(cell) for cell in ("=1+1", "-0.5", "- good", "'=1", "good")]
        ["'=1+1", '-0.5', "'- good", "''=1", 'good']
    """
    return f"'{cell}" if _FORMULA.match(cell) and not _is_number(cell) else cell


def unescaped(cell: str) -> str:
    """The cell that :func:`escaped` was given.

    Example:
        >>> [unescaped(escaped(cell)) for cell in ("=1+1", "'=1", "'good'")]
        ['=1+1', "'=1", "'good'"]
    """
    return cell[1:] if _ESCAPED.match(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell == cell.strip()


LONGEST = 32_767
"""Characters of a cell of a workbook."""
WORKBOOK = "xlsx"
"""Ending of a workbook, without the dot."""


def workbook_text(path: Path) -> str:
    """The first worksheet as comma-separated values, warning of others; ``OSError`` or ``ValueError`` for none."""
    openpyxl: Any = optional(str(path), "openpyxl", "excel")
    try:
        book = openpyxl.load_workbook(io.BytesIO(path.read_bytes()), read_only=True, data_only=True)
    except (BadZipFile, KeyError) as error:
        raise ValueError(f"expected a workbook of Excel ({error})") from None
    first, others = book.sheetnames[0], len(book.sheetnames) - 1
    if others:
        words = f"{path}: the first sheet, {shown(first)}, is read, {others} other{'s' * (others > 1)} not"
        warnings.warn(words, PlainWarning, stacklevel=2)
    text = io.StringIO(newline="")
    rows = ([_as_text(cell) for cell in row] for row in book.worksheets[0].iter_rows(values_only=True))
    write = csv.writer(text, lineterminator="\r\n").writerow
    for row in rows:
        # A blank row is a line, so that numbers of lines are those of the rows.
        write(row if any(row) else ())
    book.close()
    return text.getvalue()


def _as_text(cell: Any) -> str:
    """A cell as a file of text has it: nothing for an empty one, whole numbers without a point."""
    whole = isinstance(cell, float) and cell.is_integer()
    return "" if cell is None else str(int(cell) if whole else cell)


def write_workbook(file: BinaryIO, rows: Iterable[Sequence[Any]]) -> None:
    """Writes rows into a workbook, no text as a formula; a cell that is too long is cut, with a warning."""
    openpyxl: Any = optional(f"a file that ends in .{WORKBOOK}", "openpyxl", "excel")
    book = openpyxl.Workbook(write_only=True)
    page = book.create_sheet()
    cut = 0
    for row in rows:
        values = [_UNWRITABLE.sub("\ufffd", value) if isinstance(value, str) else value for value in row]
        cut += sum(isinstance(value, str) and len(value) > LONGEST for value in values)
        cells = [openpyxl.cell.WriteOnlyCell(page, value) for value in values]
        for cell in cells:
            if cell.data_type == "f":
                cell.data_type = "s"
        page.append(cells)
    book.save(file)
    if cut:
        words = (
            f"{cut:,} cells are cut at {LONGEST:,} characters, the most that a workbook holds; write a .csv"
        )
        warnings.warn(words, PlainWarning, stacklevel=2)
