"""What commands print."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import typer

from probattn.cli.errors import wrapped

if TYPE_CHECKING:
    from probattn.report import Sheet


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines without what a terminal takes for a command."""
    from probattn.report import printable_lines

    typer.echo(wrapped(printable_lines(text), sys.stderr if err else sys.stdout), err=err)


def show(table: Sheet) -> None:
    """Prints a table on standard output, in the width of the terminal where that is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(f"{table.text(width)}\n")
