"""What a prediction costs by each variant, in passes of the reference's network, measured in turn with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from probattn.comparison.variants import Interval, pass_once, predicted
from probattn.files.durable import write_atomically
from probattn.files.json_files import JSONError, read_json
from probattn.metrics.functional import mean_interval
from probattn.tasks import load_network
from probattn.tasks.classification.task import Classification
from probattn.tasks.progress import shown, tracked

COSTS = "costs.json"
"""What has been measured, in the folder of a comparison."""
TEXTS, REPEATS = 64, 5
DRAWN = ("dropout", "draws")
PASSES = (*DRAWN, "moments")
Action = Callable[[], object]
Costs = dict[str, dict[str, Interval]]
_FILE = TypeAdapter(tuple[list[str], Costs])


def passes_of(variant: str) -> str:
    """The passes that a variant takes: "dropout", "draws", "moments", or "point" for one without noise."""
    return next((item for item in PASSES if variant == item or variant.startswith(f"{item}_")), "point")


def measured_costs(
    folder: Path,
    networks: Mapping[str, tuple[Classification, Path]],
    variants: Mapping[str, Collection[str]],
    digests: Sequence[str],
) -> Costs:
    """Costs by recipe and kind of passes, with their intervals over repeats; what has been measured is read.

    Args:
        folder: of the comparison.
        networks: a task and a trained network's folder by recipe, that of the reference first.
        variants: of each recipe.
        digests: of the recipes; where they or the variants are others than before, costs are measured anew.
    """
    file = folder / COSTS
    with FileLock(folder / f".{COSTS}.lock"):
        try:
            previous, costs = read_json(file, _FILE)
        except (JSONError, FileNotFoundError):
            previous, costs = [], {}
        needed = {(name, passes_of(variant)) for name, entries in variants.items() for variant in entries}
        if previous != list(digests) or needed != {
            (name, kind) for name, entries in costs.items() for kind in entries
        }:
            costs = _measured(networks, variants)
            write_atomically(file, _FILE.dump_json((list(digests), costs)))
    return costs


def _measured(
    networks: Mapping[str, tuple[Classification, Path]], variants: Mapping[str, Collection[str]]
) -> Costs:
    unit: Action | None = None
    costs: Costs = {}
    for name, (task, folder) in networks.items():
        network, texts = load_network(folder), task.texts.test.take(TEXTS)
        kinds = {passes_of(variant) for variant in variants[name]}
        actions: dict[str, Action] = {
            item: partial(predicted, task, network, texts, item) for item in PASSES if item in kinds
        }
        point = partial(pass_once, task, network, texts)
        if unit is not None:
            actions = {"point": point} | actions
        unit = unit or point
        rounds = tracked(range(REPEATS + 1), f"{name}: cost of a prediction")
        ratios = [_ratios(unit, actions) for _ in rounds][1:]  # the first warms up
        costs[name] = {
            kind: Interval(**mean_interval(item[kind] for item in ratios)._asdict()) for kind in ratios[0]
        }
    return costs


@shown(quiet=True)
def _ratios(unit: Action, actions: Mapping[str, Action]) -> dict[str, float]:
    """How much longer each action takes than the unit, which runs before and after it.

    Without "point" among the actions, that is the unit. One pass without noise goes along with draws, and is taken off.
    """
    before, ratios = _seconds(unit), {"point": 1.0}
    for kind, action in actions.items():
        spent, after = _seconds(action), _seconds(unit)
        ratios[kind] = 2 * spent / (before + after)
        before = after
    drawn = {kind: max(ratios[kind] - ratios["point"], ratios["point"]) for kind in DRAWN if kind in ratios}
    return ratios | drawn


def _seconds(action: Action) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
