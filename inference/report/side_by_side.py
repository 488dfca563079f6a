"""What sections of the report put side by side, a network each: numbers by attention call, and drawings."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Layer:
    """A row of a table of attention calls: two numbers a network."""

    name: str
    label: str
    values: tuple[tuple[Markup, Markup], ...]


@dataclass(frozen=True)
class Panel:
    """Drawings that stand side by side, with the network of each."""

    heading: str
    drawings: tuple[tuple[str, Markup], ...]
