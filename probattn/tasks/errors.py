"""What a user can put right, in one line."""

from __future__ import annotations

from probattn.checks import shortened
from probattn.files.durable import os_error_words


class RunError(ValueError):
    """What was asked of a run cannot be done; the message says what was expected, what came and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


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
