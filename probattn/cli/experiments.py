"""From a recipe of an experiment to a finished run folder: one folder within it for each condition."""

from __future__ import annotations

from pathlib import Path

from probattn.cli.driving import check_recipe_is_there, keep_recipe
from probattn.cli.errors import CommandError, one_line
from probattn.cli.experiment_conditions import PROBES, Seeds, Stage, copy_task, stage_driver
from probattn.cli.head_search import Pools, chosen_heads, pools, search_seeds
from probattn.cli.processes import launched
from probattn.cli.training import check_folder
from probattn.inference.records import read_records
from probattn.inference.report import first_steps, runs_of
from probattn.inference.run import FitResult
from probattn.inference.storage import RECORDS
from probattn.recipes import ConditionRecipe, ExperimentRecipe
from probattn.recipes.experiment import SEARCH


def train_experiment(
    recipe: ExperimentRecipe, folder: Path, *, resume: bool, quiet: bool
) -> dict[str, FitResult]:
    """Trains every condition, after the search for heads where there is one.

    Args:
        recipe: of an experiment.
        folder: of the run, new unless resumed.
        resume: continue a run that was interrupted; conditions that are finished are not trained again.
        quiet: no progress bars.

    Returns:
        Results by condition.

    Raises:
        CommandError: the folder holds a run already, or none to resume; several processes; or no good and bad heads.
    """
    if launched():
        raise CommandError("experiments: expected one process, got a launcher's several")
    check_folder(recipe, folder, resume)
    keep_recipe(recipe, folder)
    results: dict[str, FitResult] = {}
    search = recipe.experiment.search
    found: Pools | None = None
    if search is not None:
        stage = search_stage(recipe, folder)
        results[SEARCH] = _train(recipe, stage, resume, quiet)
        found = found_heads(recipe, folder)
    for name in _order(recipe):
        check_recipe_is_there(folder)
        results[name] = _train(recipe, condition_stage(recipe, folder, name, found), resume, quiet)
    return results


def search_stage(recipe: ExperimentRecipe, folder: Path) -> Stage:
    """Models of one head on the task of the first condition that asks for good and bad ones."""
    search = recipe.experiment.search
    assert search is not None
    wanting = next(each for each in recipe.experiment.conditions.values() if each.starts != "random")
    condition = wanting.model_copy(update={"title": None, "heads": 1, "starts": "random"})
    return Stage(SEARCH, condition, search_seeds(recipe, search), folder / SEARCH, search.steps)


def found_heads(recipe: ExperimentRecipe, folder: Path) -> Pools:
    """What the search of a run found.

    Raises:
        CommandError: its records are missing.
        RecordsError: they are damaged.
    """
    stage = search_stage(recipe, folder)
    steps, accuracy = runs_of(read_records(stage.folder / RECORDS), "accuracy", len(stage.seeds.models))
    if not steps:
        raise CommandError(
            f"{stage.folder}: expected the accuracies of the search in {RECORDS}, found none; train again"
        )
    first = first_steps(steps, accuracy, recipe.experiment.threshold)
    return pools(stage.seeds, [step is not None for step in first])


def condition_stage(recipe: ExperimentRecipe, folder: Path, name: str, found: Pools | None) -> Stage:
    """A condition of the recipe, with the heads it asks for.

    Raises:
        CommandError: there are no such heads.
    """
    condition = recipe.experiment.conditions[name]
    seeds = Seeds.of(recipe) if found is None else chosen_heads(recipe, condition, found)
    uniform = _uniform(recipe, condition)
    place = None if uniform is None or uniform == name else folder / uniform / PROBES
    return Stage(name, condition, seeds, folder / name, recipe.training.steps, place)


def _order(recipe: ExperimentRecipe) -> list[str]:
    """Uniform attention first: others are compared with its probes."""
    conditions = recipe.experiment.conditions
    return sorted(conditions, key=lambda name: conditions[name].attention != "uniform")


def _uniform(recipe: ExperimentRecipe, condition: ConditionRecipe) -> str | None:
    """The condition of the same task under uniform attention, if there is one."""
    if recipe.experiment.task != "copy":
        return None
    for name, each in recipe.experiment.conditions.items():
        if each.attention == "uniform" and copy_task(each) == copy_task(condition):
            return name
    return None


def _train(recipe: ExperimentRecipe, stage: Stage, resume: bool, quiet: bool) -> FitResult:
    with stage_driver(recipe, stage, quiet=quiet) as driver:
        try:
            return driver.fit(resume="auto" if resume else False)
        except ArithmeticError as error:
            raise CommandError(f"{stage.name}: {one_line(error)}") from error
