"""Checks of options, with errors that name the option."""

from __future__ import annotations

import math
from typing import Any, get_args


def check_choice(owner: str, name: str, value: object, choices: Any) -> None:
    """Raises ``ValueError`` unless ``value`` is one of the ``Literal`` ``choices``."""
    allowed = get_args(choices)
    if value not in allowed:
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{owner}.{name}: expected one of {listed}, got {value!r}")


def check_number(owner: str, name: str, value: object, *, positive: bool) -> None:
    """Raises ``ValueError`` unless ``value`` is a finite number >= 0, or > 0."""
    bound = "> 0" if positive else ">= 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{owner}.{name}: expected a finite number {bound}, got {value!r}")
    if value < 0 or (positive and value == 0):
        raise ValueError(f"{owner}.{name}: expected a number {bound}, got {value}")


def check_integer(owner: str, name: str, value: object, *, least: int) -> None:
    """Raises ``ValueError`` unless ``value`` is an integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{owner}.{name}: expected an integer >= {least}, got {value!r}")
