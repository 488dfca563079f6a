"""The error and the warning of loaders, and suggestions for misspelt names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
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


def warn_truncated(source: str, max_length: int, count: int, message: str, level: int = 4) -> None:
    """Warns once of a source whose texts are truncated, however often it is tokenized, and again where more are."""
    if count > TOLD.get((source, max_length), 0):
        TOLD[source, max_length] = count
        warnings.warn(f"{message}: they are truncated", DataWarning, stacklevel=level)


def warn_long(source: str, lengths: Sequence[int], limit: int, rows: str, unit: str) -> None:
    """Warns with the number of rows that are longer than a limit, as :func:`warn_truncated` does."""
    long = [length for length in lengths if length > limit]
    message = (
        f"{source}: {len(long):,} of {len(lengths):,} {rows} are longer than {limit} {unit} (the longest has "
    )
    if long:
        warn_truncated(source, limit, len(long), f"{message}{max(long):,})", level=5)


def suggestion(word: str, names: Iterable[str]) -> str:
    """The clause "; did you mean 'text'?" of the nearest known word; "" where none is near."""
    near = nearest(word, names)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The known word most similar to ``word``, ignoring case, or None."""
    lowered = {name.casefold(): name for name in names}
    near = get_close_matches(word.casefold(), lowered, n=1, cutoff=0.6)
    return lowered[near[0]] if near else None
