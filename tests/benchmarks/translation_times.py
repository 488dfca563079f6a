"""How long updates of translation networks take against each other, in turns, so that a busy machine slows down all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from probattn.inference.records import read_records
from probattn.metrics.functional import mean_interval
from probattn.recipes import TranslationRecipe, load_any_recipe
from probattn.tasks import Translation, train
from probattn.tasks.translation import step_seconds

UPDATES = 40
"""Of a network in its turn; their time is the median over records of ten."""

METRICS = "metrics.jsonl"
KEYS = (
    f"training.steps={UPDATES}",
    "training.warmup_steps=1",
    "training.log_every=10",
    f"training.eval_every={UPDATES}",
    f"training.checkpoint_every={UPDATES}",
    "report.baseline=false",
)


def measure(
    recipe: str, methods: Mapping[str, Sequence[str]], overrides: Sequence[str], rounds: int, first: str
) -> dict[str, Any]:
    """Seconds of an update by method, and over the first method's in the same round: means over rounds, intervals.

    Each round begins with another method.

    Args:
        recipe: its name or file.
        methods: keys of the recipe that each changes.
        overrides: keys that all change.
        rounds: how often each has its turn.
        first: what the others are compared with.
    """
    recipes = {name: _recipe(recipe, [*keys, *overrides, *KEYS]) for name, keys in methods.items()}
    tasks = {name: Translation(recipe) for name, recipe in recipes.items()}
    for task in tasks.values():
        task.data = tasks[first].data
    found: list[dict[str, float]] = []
    names = list(recipes)
    for turn in range(rounds):
        seconds = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with TemporaryDirectory() as folder:
                place = Path(folder) / "run"
                train(tasks[name], place, quiet=True)
                taken = step_seconds(read_records(place / METRICS))
            assert taken is not None  # there are records
            seconds[name] = taken
        found.append(seconds)
    rows = {name: {"step_seconds": mean_interval(each[name] for each in found)._asdict()} for name in names}
    for name in names:
        if name != first:
            rows[name]["step_ratio"] = mean_interval(each[name] / each[first] for each in found)._asdict()
    return {"rounds": rounds, "updates": UPDATES, "methods": rows}


def _recipe(name: str, keys: Sequence[str]) -> TranslationRecipe:
    found = load_any_recipe(name, list(keys))
    if not isinstance(found, TranslationRecipe):
        raise typer.BadParameter(f"recipe: expected one of translation, {name} is not")
    return found
