"""Options of a comparison, which the command line shows without importing the modules that compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from probattn.options import Count, Filled, OpenShare, Options, SomeOf


@dataclass(frozen=True)
class CompareOptions(Options):
    """Options of a comparison.

    Args:
        recipes: recipes of texts: names or files; the first is the reference. Their names differ.
        seeds: number of seeds, from 0.
        set: override a key of all recipes: data.train=trec (repeatable).
        error: target error rate at which coverage is compared.
        against: prediction method of the first recipe that the others are compared with: point, dropout, ...
        workers: number of processes that share the runs, each with one thread.

    Raises:
        ValueError: a value is out of its range, or two recipes have the same name.
    """

    recipes: SomeOf[Filled]
    seeds: Count = 3
    set: Sequence[str] = ()
    error: OpenShare = 0.05
    against: str = "point"
    workers: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [Path(recipe).stem for recipe in self.recipes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"expected recipes of different names, got {twice!r} twice")
