"""Seeds of several integers."""

from __future__ import annotations

from collections.abc import Sequence

WORD = 32
"""Bits of the words in which numpy's seed sequences take integers."""


def seed_integers(integers: Sequence[int]) -> tuple[int, ...]:
    """Integers >= 0 for a numpy seed sequence, which differs wherever they do and are of the same number.

    numpy joins the words of all integers, so that (2^32 + 5, 7) and (5, 7 * 2^32 + 1) would be one seed. Where an
    integer has several words, their numbers follow; smaller integers stay as they are.

    Example:
        >>> seed_integers((5, 7)), seed_integers((2**32 + 5, 7))
        ((5, 7), (4294967301, 7, 2, 1))
    """
    lengths = [max(1, -(-number.bit_length() // WORD)) for number in integers]
    return tuple(integers) if max(lengths, default=1) == 1 else (*integers, *lengths)
