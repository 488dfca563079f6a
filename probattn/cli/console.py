"""What commands print, and options that several of them take."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

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


def drawing_options(task: Any, **options: int | None) -> dict[str, Any]:
    """Options of predictions; where one is None, that of the run's recipe.

    Raises:
        RunError: one is given, and the task's answers have no draws.
    """
    from probattn.tasks import RunError

    undrawn = getattr(task.answering, "undrawn", None)
    for name, value in options.items():
        if value is not None and undrawn is not None:
            option = f"--{name.replace('_', '-')} {value}"
            raise RunError(f"{option}: expected no such option, {undrawn}; leave it out")
    section = getattr(task.recipe, "prediction", None)
    values = {
        name: getattr(section, name, None) if value is None else value for name, value in options.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def options_error(command: str, error: ValueError) -> ValueError:
    """The error of a command's options, which names the command in place of their class."""
    from probattn.tasks import RunError

    return RunError(f"{command}: {re.sub(r'^[A-Za-z]+Options[.]', '', str(error))}")
