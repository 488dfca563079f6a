"""Good and bad initial values of heads, by rejection sampling (Snell et al. 2021, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probattn.cli.errors import CommandError
from probattn.cli.experiment_conditions import Seeds
from probattn.recipes import ConditionRecipe, ExperimentRecipe, HeadSearchRecipe

Pools = Mapping[int, tuple[Sequence[int], Sequence[int]]]
"""Seeds of the good and of the bad heads that were tried in a model, by the model's seed."""


def search_seeds(recipe: ExperimentRecipe, search: HeadSearchRecipe) -> Seeds:
    """A run of one head for each candidate of each model; candidates of all models are different ones.

    All candidates of a model read the same sentences, so that nothing but the head decides between them.
    """
    first = recipe.training.seed
    count = search.models * search.candidates
    models = tuple(first + index // search.candidates for index in range(count))
    return Seeds(models, models, tuple((first + index,) for index in range(count)))


def pools(seeds: Seeds, good: Sequence[bool]) -> Pools:
    """What came out of the search.

    Args:
        seeds: of the search.
        good: whether each candidate's run learned in time.

    Example:
        >>> pools(Seeds((5, 5, 6), (0, 1, 2), ((7,), (8,), (9,))), [True, False, False])
        {5: ([7], [8]), 6: ([], [9])}
    """
    found: dict[int, tuple[list[int], list[int]]] = {model: ([], []) for model in seeds.models}
    assert seeds.heads is not None
    for model, (head,), learned in zip(seeds.models, seeds.heads, good, strict=True):
        found[model][0 if learned else 1].append(head)
    return found


def chosen_heads(recipe: ExperimentRecipe, condition: ConditionRecipe, found: Pools) -> Seeds:
    """Heads for the runs of a condition, each run in one of the models that were searched.

    Every condition takes the same model for its n-th run, and the sentences of that model's candidates.

    Args:
        recipe: of the experiment.
        condition: what heads it wants.
        found: what the search gave.

    Raises:
        CommandError: no model has enough good and bad heads.
    """
    heads, runs, first = condition.heads, recipe.training.runs, recipe.training.seed
    least = max(each.heads for each in recipe.experiment.conditions.values() if each.starts != "random")
    usable = [model for model, (good, bad) in found.items() if good and len(bad) >= least]
    if not usable:
        counts = ", ".join(f"{len(good)} good and {len(bad)} bad" for good, bad in found.values())
        raise CommandError(
            f"search: expected a model with a good head and {least} bad ones, got {counts}; try more candidates, or "
            "other experiment.search.steps"
        )
    tried = sum(len(good) + len(bad) for good, bad in found.values())
    models = tuple(usable[run % len(usable)] for run in range(runs))
    chosen = []
    for run, model in enumerate(models):
        draw = np.random.default_rng((first, run))
        good, bad = found[model]
        if condition.starts == "random":
            fresh = first + tried + run * heads
            chosen.append(tuple(range(fresh, fresh + heads)))
            continue
        picked = [int(head) for head in draw.choice(list(bad), heads, replace=False)]
        if condition.starts == "one_good":
            picked[int(draw.integers(heads))] = int(draw.choice(list(good)))
        chosen.append(tuple(picked))
    return Seeds(models, models, tuple(chosen))
