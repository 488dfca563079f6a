"""Errors that a user can correct, with messages of one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from probattn.checks import MESSAGE, OneLineError, shortened
from probattn.files.durable import os_error_words

PLACE, PROBLEM = 140, 420
"""Most characters of the recipe's name and of a problem."""


class RunError(OneLineError):
    """A request about a run that cannot be fulfilled; the message says what was expected, what was got, what to do."""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, and not longer than a reader likes; the system's name their file.

    Example:
        >>> one_line(FileNotFoundError(2, "No such file or directory", "/proc/x"))
        '/proc/x: No such file or directory; expected a path that this user may read and write: ...'
    """
    words = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the number that Python puts before it
        words = error.strerror if error.filename is None else f"{error.filename}: {os_error_words(error)}"
    return shortened(words) or type(error).__name__


@contextmanager
def as_run_error(*kinds: type[Exception], where: str = "") -> Iterator[None]:
    """A block whose errors of these kinds become a ``RunError`` of the same words, after those of ``where``."""
    try:
        yield
    except kinds as error:
        raise RunError(f"{where}: {one_line(error)}" if where else one_line(error)) from error


class RecipeError(ValueError):
    """A recipe that cannot be followed; the message is one line that names the problems and their positions.

    Args:
        where: name of the recipe in the message.
        problems: one sentence per problem; the attribute ``problems`` has all, the message those that fit a line.

    Example:
        >>> print(RecipeError("my.yaml", ["unknown key 'a'", "missing key 'b'"]))
        my.yaml: 2 problems: (1) unknown key 'a' (2) missing key 'b'
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = tuple(shortened(problem, PROBLEM) for problem in problems)
        super().__init__(_listed(shortened(where, PLACE), self.problems))


def _listed(where: str, problems: Sequence[str]) -> str:
    """The problems with their numbers, as many as fit into a message."""
    if len(problems) == 1:
        return f"{where}: {problems[0]}"
    message = f"{where}: {len(problems)} problems:"
    for number, problem in enumerate(problems, start=1):
        longer = f"{message} ({number}) {problem}"
        rest = "" if number == len(problems) else f" and {len(problems) - number} more"
        if number > 1 and len(longer + rest) > MESSAGE:
            return f"{message} and {len(problems) - number + 1} more"
        message = longer
    return message
