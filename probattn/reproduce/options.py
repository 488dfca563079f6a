"""Options of the reproduction of a table, which the command line shows without importing what trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probattn.options import Count, Options

Size = Literal["small", "paper"]


@dataclass(frozen=True)
class ReproduceOptions(Options):
    """Which part of a table is run, and at what size.

    Args:
        size: "small" has the recipes and sizes that two cores run in minutes, "paper" those of the paper.
        seeds: number of seeds.
        rows: rows to run (repeatable); all by default.
        columns: columns to run (repeatable); all by default.
        set: override a key of all recipes: training.device=cuda (repeatable).

    Raises:
        ValueError: a value is out of its range.
    """

    size: Size = "small"
    seeds: Count = 3
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    set: Sequence[str] = ()
