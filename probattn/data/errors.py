"""The error and the warning of loaders, and suggestions for misspelt names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from probattn.checks import OneLineError, PlainWarning


class DataError(OneLineError):
    """Data that cannot be used; the message is one line: where, what was expected, what was found, what to do."""


class DataWarning(PlainWarning):
    """Data that are used with a reservation, such as truncated texts or test texts that are in the training data."""


TOLD: dict[tuple[str, int], int] = {}
"""Number of truncated texts that this process has been warned of, by their source and the tokens that were kept."""


def warn_long(
    source: str,
    lengths: Sequence[int],
    limit: int,
    rows: str,
    unit: str,
    *,
    refuse: bool = False,
    numbered: bool = False,
) -> None:
    """Warns of rows that are longer than a limit, once a source unless there are more later; or refuses them.

    With ``numbered`` a warning says which row is the longest; without, it is the same in whatever order rows are read.
    """
    count = sum(length > limit for length in lengths)
    if not count:
        return
    longest = max(lengths)
    where = f", {rows.removesuffix('s')} {lengths.index(longest) + 1:,}," if numbered or refuse else ""
    message = f"{source}: {count:,} of {len(lengths):,} {rows} are longer than {limit} {unit} (the longest{where} has "
    message = f"{message}{longest:,})"
    if refuse:
        raise DataError(f"{message}; shorten them, raise max_length, or set on_long to 'truncate'")
    if count > TOLD.get((source, limit), 0):
        TOLD[source, limit] = count
        warnings.warn(f"{message}: they are truncated", DataWarning, stacklevel=3)


def suggestion(word: str, names: Iterable[str]) -> str:
    """The clause "; did you mean 'text'?" of the nearest known word; "" where none is near."""
    near = nearest(word, names)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The known word most similar to ``word``, ignoring case, or None."""
    lowered = {name.casefold(): name for name in names}
    near = get_close_matches(word.casefold(), lowered, n=1, cutoff=0.6)
    return lowered[near[0]] if near else None
