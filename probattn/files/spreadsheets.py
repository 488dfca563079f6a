"""Cells that a spreadsheet would take for a formula."""

from __future__ import annotations

import re
from typing import Literal

Escape = Literal["words", "all", "none"]
"""Which cells of a table are escaped: words of predictions, those of the input too, or none."""

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
