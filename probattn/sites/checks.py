"""Checks of the options that methods share: which attention calls, which projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from probattn.checks import check_choice


def check_selection(
    owner: str, layers: object, attention: object, words: Any
) -> str | tuple[int, ...] | None:
    """Which attention calls a method concerns, as options hold it: words as they are, numbers as a tuple.

    Args:
        owner: the options' class.
        layers: one of the ``Literal`` ``words``, layer numbers, or None.
        attention: "all", "self", "cross" or None.
        words: what ``layers`` may be besides numbers.

    Returns:
        ``layers``, in a form that compares and hashes alike.

    Raises:
        ValueError: something else.
    """
    if attention is not None:
        check_choice(owner, "attention", attention, Literal["all", "self", "cross"])
    if layers is None:
        return None
    if isinstance(layers, str):
        check_choice(owner, "layers", layers, words)
        return layers
    numbers = tuple(layers) if isinstance(layers, Sequence) else ()
    if not numbers or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        listed = ", ".join(map(repr, get_args(words)))
        raise ValueError(f"{owner}.layers: expected one of {listed} or layer numbers, got {layers!r}")
    return numbers


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


def check_flag(owner: str, name: str, value: object) -> None:
    """Raises ``ValueError`` unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{name}: expected True or False, got {value!r}")
