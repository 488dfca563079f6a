"""One clear line and exit status 2 for what a user can put right."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

import typer

from probattn.data import DataError, DataWarning
from probattn.inference.checkpoint import CheckpointError
from probattn.inference.meter import NonFiniteError
from probattn.inference.report import ResultsFileError, printable
from probattn.models import StoredNetworkError
from probattn.recipes import RecipeError

EXIT_STATUS = 2

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class CommandError(ValueError):
    """What a command was given does not fit; the message is the line a user sees."""


EXPECTED = (
    CommandError,
    RecipeError,
    DataError,
    StoredNetworkError,
    ResultsFileError,
    CheckpointError,
    NonFiniteError,
    OSError,
)


def one_to_compare(run: Path, baseline: Path) -> str:
    """What is wrong with a baseline of a run that is one itself."""
    return (
        f"--baseline {baseline}: expected a run that is compared with it, {run} is deterministic itself; give the "
        "other run first"
    )


def one_line(error: BaseException) -> str:
    """An error's message without line breaks; for the system's errors with the file they are about."""
    return " ".join(str(error).split()) or type(error).__name__


def fails_in_one_line(command: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Turns the errors of :data:`EXPECTED` into a line on standard error and exit status 2.

    Warnings about data become lines too. Anything else is a defect of ours and keeps its traceback.
    """

    @functools.wraps(command)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with warnings.catch_warnings():
            warnings.showwarning = _Lines()
            warnings.simplefilter("always", DataWarning)
            try:
                return command(*args, **kwargs)
            except EXPECTED as error:
                typer.echo(printable(f"error: {one_line(error)}"), err=True)
                raise typer.Exit(EXIT_STATUS) from error

    return guarded


class _Lines:
    """Writes a warning about data as a line, once a command; other warnings as Python does."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, DataWarning):
            (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
        elif str(message) not in self._said:
            self._said.add(str(message))
            sys.stderr.write(printable(f"warning: {message}") + "\n")
