"""What commands print, and one clear line with exit status 2 for what a user can put right."""

from __future__ import annotations

import atexit
import codecs
import functools
import gc
import io
import os
import shlex
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

import typer

from probattn.checks import PlainWarning, shown
from probattn.terminal import Sheet, printable, printable_lines


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines without what a terminal takes for a command."""
    typer.echo(wrapped(printable_lines(text), sys.stderr if err else sys.stdout), err=err)


def show(table: Sheet) -> None:
    """Prints a table on standard output, in the width of the terminal where that is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(f"{table.text(width)}\n")


EXIT_STATUS = 2
SIGNALLED = 128
"""What shells add to the number of the signal that ended a program."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


ERRORS = {
    "data.errors": "DataError",
    "inference.checkpoint": "CheckpointError",
    "inference.loop": "NonFiniteError",
    "inference.records": "RecordsError",
    "models.hosts.pretrained": "StoredNetworkError",
    "report.results": "ResultsFileError",
    "tasks.errors": "RecipeError RunError",
}
"""Names of :func:`expected_errors` by their modules; what was not imported did not raise one."""


def expected_errors() -> tuple[type[Exception], ...]:
    """Errors that a user can put right. Anything else is a defect of ours and keeps its traceback."""
    loaded = ((sys.modules.get(f"probattn.{module}"), names) for module, names in ERRORS.items())
    return (OSError, *(getattr(module, name) for module, names in loaded if module for name in names.split()))


def fails_in_one_line(command: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Turns :func:`expected_errors` into a line on standard error and exit status 2; warnings about data are lines."""

    @functools.wraps(command)
    @_open_streams()
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with warnings.catch_warnings():
            warnings.showwarning = _lines(PlainWarning)
            warnings.simplefilter("always", PlainWarning)
            try:
                _check_arguments([*args, *kwargs.values()])
                return command(*args, **kwargs)
            except BrokenPipeError:  # what reads the output needs no more of it
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(SIGNALLED + getattr(signal, "SIGPIPE", 13)) from None
            except expected_errors() as error:
                from probattn.tasks.errors import one_line

                raise _failure(one_line(error)) from error
            except RuntimeError as error:
                if "home directory" not in str(error):
                    raise
                raise _failure(
                    "a path that begins with ~: expected a user of this machine after it, got none of that name; write "
                    "./~ for a file whose name begins so"
                ) from error
            except KeyboardInterrupt as error:
                typer.echo(printable(f"interrupted{f': {error}' if error.args else ''}"), err=True)
                raise typer.Exit(SIGNALLED + getattr(error, "number", signal.SIGINT)) from error

    return guarded


def _failure(message: str) -> typer.Exit:
    """Prints an error's line; what ends the program."""
    typer.echo(wrapped(printable(f"error: {message}"), sys.stderr), err=True)
    return typer.Exit(EXIT_STATUS)


def wrapped(text: str, stream: TextIO) -> str:
    """Lines that a terminal shows with breaks between words; elsewhere as they are."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    fill = functools.partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(fill(line) if len(line) > width else line for line in text.splitlines())


@contextmanager
def _open_streams() -> Iterator[None]:
    """Where standard output or error is closed, nothing is written to it; what its encoding lacks becomes an escape."""
    with ExitStack() as stack:
        for stream, redirected in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None:
                nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                stack.enter_context(redirected(nowhere))
            elif isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
                stream.reconfigure(errors="backslashreplace")
        yield


def check_recipe(path_or_name: str) -> None:
    """Raises ``RecipeError`` for a recipe that is not there or is no YAML, before the tasks are imported."""
    from probattn.cli.built_in import recipe_files
    from probattn.tasks.sections.yaml_nodes import parse, recipe_text

    parse(recipe_text(path_or_name, recipe_files()), path_or_name)


def import_tasks(module: str = "probattn.tasks.registry") -> None:
    """Imports what works with networks, or less, after a command has checked what it can without."""
    with kept_imports():
        import_module(module)


@contextmanager
def kept_imports() -> Iterator[None]:
    """Leaves what is imported here out of all garbage collections, which take two fifths of a short command's time."""
    if "probattn.tasks.registry" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if "triton" in sys.modules:
            atexit.register(gc.unfreeze)  # Triton 3.9 prints that it leaks what is frozen at the end


@contextmanager
def interruption_says(words: Callable[[], str | None]) -> Iterator[None]:
    """Makes an interruption in this block say how to go on; not where there are no words."""
    try:
        yield
    except KeyboardInterrupt as error:
        if (advice := words()) is not None:
            error.args = (f"{f'{error}; ' if error.args else ''}{advice}",)
        raise


def says_how_to_resume(folder: Path, device: str | None = None) -> AbstractContextManager[None]:
    """Makes an interruption say how to continue the run, once its folder allows it."""
    recipe, where = folder / "recipe.yaml", "" if device is None else f" --device {device}"
    command = f"probattn train {shlex.quote(str(recipe))} --output {shlex.quote(str(folder))} --resume{where}"
    return interruption_says(lambda: f"continue with `{command}`" if recipe.exists() else None)


def _check_arguments(values: Iterable[object]) -> None:
    """Refuses what is no text: such bytes come in as halves of characters, which no file and no tokenizer takes."""
    for value in values:
        if isinstance(value, list):
            _check_arguments(value)
        elif isinstance(value, (str, Path)):
            try:
                str(value).encode()
            except UnicodeEncodeError as error:
                from probattn.tasks.errors import RunError

                raise RunError(
                    f"argument {shown(str(value))}: expected UTF-8 text, got other bytes at character "
                    f"{error.start + 1}; write it in UTF-8"
                ) from error


def _lines(categories: type[Warning]) -> Callable[..., None]:
    """What writes a warning of a category as a line, once a command; others as Python does."""
    written: set[str] = set()

    def write(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, categories):
            (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
        elif str(message) not in written:
            written.add(str(message))
            sys.stderr.write(wrapped(printable(f"warning: {message}"), sys.stderr) + "\n")

    return write
