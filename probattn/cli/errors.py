"""One clear line and exit status 2 for what a user can put right."""

from __future__ import annotations

import functools
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

import typer

from probattn.checks import shortened, shown
from probattn.data import DataError, DataWarning
from probattn.inference.checkpoint import CheckpointError
from probattn.inference.loop import NonFiniteError
from probattn.inference.records import RecordsError
from probattn.inference.report import ResultsFileError, printable
from probattn.models import StoredNetworkError
from probattn.recipes import RecipeError

EXIT_STATUS = 2
INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class CommandError(ValueError):
    """What a command was given does not fit; the message is the line a user sees."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


EXPECTED = (
    CommandError,
    RecipeError,
    DataError,
    StoredNetworkError,
    ResultsFileError,
    RecordsError,
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
    """An error's message without line breaks, and not longer than a reader likes; the system's name their file."""
    return shortened(str(error)) or type(error).__name__


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
                _check_arguments([*args, *kwargs.values()])
                return command(*args, **kwargs)
            except EXPECTED as error:
                typer.echo(printable(f"error: {one_line(error)}"), err=True)
                raise typer.Exit(EXIT_STATUS) from error
            except KeyboardInterrupt as error:
                typer.echo(printable(f"interrupted{f': {error}' if error.args else ''}"), err=True)
                raise typer.Exit(INTERRUPTED) from error

    return guarded


@contextmanager
def says_how_to_resume(folder: Path) -> Iterator[None]:
    """Has an interruption in this block say how a run goes on, once its folder holds what that takes.

    Args:
        folder: the run's.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        recipe = folder / "recipe.yaml"
        if not recipe.exists():
            raise
        raise KeyboardInterrupt(
            f"continue with `probattn train {shlex.quote(str(recipe))} --output {shlex.quote(str(folder))} --resume`"
        ) from error


def _check_arguments(values: Iterable[object]) -> None:
    """Refuses what is no text: such bytes come in as halves of characters, which no file and no tokenizer takes.

    Raises:
        CommandError: an argument has them.
    """
    for value in values:
        if isinstance(value, list):
            _check_arguments(value)
        elif isinstance(value, (str, Path)):
            try:
                str(value).encode()
            except UnicodeEncodeError as error:
                raise CommandError(
                    f"argument {shown(str(value))}: expected UTF-8 text, got other bytes at character "
                    f"{error.start + 1}; write it in UTF-8"
                ) from error


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
