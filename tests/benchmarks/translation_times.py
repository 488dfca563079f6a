"""How long updates of translation networks take against each other, in turns, so that a busy machine slows down all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from study import interval

from probattn.inference.records import read_records
from probattn.tasks import load_task, train
from probattn.tasks.translation.results import step_seconds

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


def measure(recipe: str, methods: Mapping[str, Sequence[str]], rounds: int, first: str) -> dict[str, Any]:
    """Seconds of an update by method, and over the first method's in the same round: means over rounds, intervals.

    Each round begins with another method.
    """
    tasks = {name: load_task(recipe, [*keys, *KEYS]) for name, keys in methods.items()}
    for task in tasks.values():
        task.data = tasks[first].data
    found: list[dict[str, float]] = []
    names = list(tasks)
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
    rows = {name: {"step_seconds": interval(each[name] for each in found)} for name in names}
    for name in names:
        if name != first:
            rows[name]["step_ratio"] = interval(each[name] / each[first] for each in found)
    return {"rounds": rounds, "updates": UPDATES, "methods": rows}
