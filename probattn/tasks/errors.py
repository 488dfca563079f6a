"""What a user can put right, in one line."""

from __future__ import annotations

from probattn.checks import shortened


class RunError(ValueError):
    """What was asked of a run cannot be done; the message says what was expected, what came and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, and not longer than a reader likes; the system's name their file."""
    return shortened(str(error)) or type(error).__name__
