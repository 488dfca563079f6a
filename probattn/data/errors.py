"""The error and the warning of loaders, and suggestions for misspelt names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from difflib import get_close_matches

from probattn.checks import shortened


class DataError(ValueError):
    """Data that cannot be used; the message is one line: where, what was expected, what came, what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


class DataWarning(UserWarning):
    """Data that is used, but not quite as it came: truncated texts, texts that training data holds too."""


TOLD: dict[tuple[str, int], int] = {}
"""Number of truncated texts that this process has been warned of, by their source and the tokens that were kept."""


def warn_truncated(source: str, max_length: int, count: int, message: str) -> None:
    """Warns once of a source whose texts are truncated, however often it is tokenized, and again where more are."""
    if count > TOLD.get((source, max_length), 0):
        TOLD[source, max_length] = count
        warnings.warn(f"{message}: they are truncated", DataWarning, stacklevel=4)


def suggestion(word: str, names: Iterable[str]) -> str:
    """The clause "; did you mean 'text'?" of the nearest known word; "" where none is near."""
    near = nearest(word, names)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The known word most similar to ``word``, ignoring case, or None."""
    lowered = {name.casefold(): name for name in names}
    near = get_close_matches(word.casefold(), lowered, n=1, cutoff=0.6)
    return lowered[near[0]] if near else None
