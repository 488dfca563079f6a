"""Checks of the options that methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args


def check_parts(owner: str, parts: object, choices: Any) -> tuple[str, ...]:
    """The projections of a method, one name or several, as a tuple; ``ValueError`` for none, unknown or repeated."""
    given = tuple(parts) if isinstance(parts, Sequence) and not isinstance(parts, str) else (parts,)
    allowed = get_args(choices)
    if not given or any(part not in allowed for part in given) or len(set(given)) < len(given):
        listed = ", ".join(map(repr, allowed))
        raise ValueError(f"{owner}.projections: expected some of {listed}, each once, got {given!r}")
    return given
