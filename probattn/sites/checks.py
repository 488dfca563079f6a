"""Checks of the options that methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args


def check_parts(owner: str, parts: object, choices: Any) -> tuple[str, ...]:
    """The projections that a method concerns, a single name or several, each once.

    Raises:
        ValueError: none, something else than the ``Literal`` ``choices``, or one twice.
    """
    given = tuple(parts) if isinstance(parts, Sequence) and not isinstance(parts, str) else (parts,)
    allowed = get_args(choices)
    if not given or any(part not in allowed for part in given) or len(set(given)) < len(given):
        listed = ", ".join(map(repr, allowed))
        raise ValueError(f"{owner}.projections: expected some of {listed}, each once, got {given!r}")
    return given
