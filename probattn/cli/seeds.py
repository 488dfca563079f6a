"""Several runs of one recipe: whether they are that, and their comparison over seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probattn.cli.errors import CommandError, one_line
from probattn.inference.report import AnyResults, Results, combine
from probattn.recipes import AnyRecipe, ExperimentRecipe, TranslationRecipe

SEEDS = "seeds"
"""Name of the files that hold the comparison over seeds, in the folder of the first run."""

FREE = ("name", "output", "training.seed", "prediction.seed")
"""Keys in which runs of one recipe may differ."""


def check_runs(runs: Sequence[tuple[Path, AnyRecipe]]) -> None:
    """Makes sure that several runs are those of one recipe, each with a seed of its own.

    Args:
        runs: folders and recipes.

    Raises:
        CommandError: a kind of run that is not compared over seeds, another recipe than the first, or a seed twice.
    """
    first = runs[0]
    for folder, recipe in runs:
        if isinstance(recipe, ExperimentRecipe):
            raise CommandError(
                f"{folder}: expected one run, an experiment holds all its seeds itself (training.runs); give it alone"
            )
        if isinstance(recipe, TranslationRecipe):
            raise CommandError(
                f"{folder}: expected runs of texts or of graphs, BLEU is not compared over seeds; give each run of "
                "translation alone"
            )
    seeds: dict[int, Path] = {}
    for folder, recipe in runs:
        check_same_recipe(first, (folder, recipe), FREE)
        seed = recipe.training.seed
        if seed in seeds:
            raise CommandError(
                f"{folder}: expected another training.seed than {seed}, which {seeds[seed]} has; runs of one seed "
                "count once"
            )
        seeds[seed] = folder


def check_same_recipe(
    first: tuple[Path, AnyRecipe], other: tuple[Path, AnyRecipe], free: Sequence[str]
) -> None:
    """Makes sure that two runs are of one recipe but for the free keys, each written with dots.

    Raises:
        CommandError: they differ in another one.
    """
    own, its = (dict(_leaves(recipe.model_dump(mode="json"))) for _, recipe in (first, other))
    for key in sorted(own.keys() | its.keys()):
        if own.get(key) != its.get(key) and not f"{key}.".startswith(tuple(f"{each}." for each in free)):
            raise CommandError(
                f"{other[0]}: expected the run {first[0]} again, with {key} {own.get(key)!r}, got {its.get(key)!r}; "
                "train it with the same recipe"
            )


def combine_runs(results: Mapping[Path, AnyResults]) -> Results:
    """The comparison over seeds; its records name the runs as seen from the folder of the first.

    Raises:
        CommandError: the evaluations do not fit each other.
    """
    place = next(iter(results)).resolve()
    named: dict[str, Results] = {}
    for folder, found in results.items():
        if not isinstance(found, Results):
            raise CommandError(
                f"{folder}: expected the evaluation of a classifier, got another kind; use --again"
            )
        named[Path(os.path.relpath(folder.resolve(), place)).as_posix()] = found
    try:
        return combine(named)
    except ValueError as error:
        raise CommandError(f"in {place}: {one_line(error)}") from error


def _leaves(keys: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of sections and of their sections, written with dots, and their values."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
