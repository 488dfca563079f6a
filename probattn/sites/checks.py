"""Checks of the options that methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args


def check_parts(owner: str, parts: object, choices: Any) -> tuple[str, ...]:
    """The projections of a method, one name or several, as a tuple; ``ValueError`` for none, unknown or repeated."""
    names = tuple(parts) if isinstance(parts, Sequence) and not isinstance(parts, str) else (parts,)
    allowed = get_args(choices)
    if not names or any(part not in allowed for part in names) or len(set(names)) < len(names):
        listed = ", ".join(map(repr, allowed))
        raise ValueError(f"{owner}.projections: expected some of {listed}, each once, got {names!r}")
    return names
