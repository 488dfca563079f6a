"""The list of all tasks, and functions that find the task of a recipe or run, trained networks and results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from probattn.checks import no_run
from probattn.report import read_results
from probattn.sites import METHODS
from probattn.tasks.classification import Classification
from probattn.tasks.classification.recipe import Recipe
from probattn.tasks.errors import RecipeError, RunError
from probattn.tasks.experiments import Experiments
from probattn.tasks.fine_tuning import FINE_TUNING
from probattn.tasks.graph_text import GraphTextTask
from probattn.tasks.graphs import Graphs
from probattn.tasks.networks import Network
from probattn.tasks.pretraining import Pretraining
from probattn.tasks.sections.base import RunRecipe
from probattn.tasks.sections.keys import load, read
from probattn.tasks.sections.yaml_nodes import SUFFIXES
from probattn.tasks.task import BASELINE, RECIPE, RESULTS, Task
from probattn.tasks.translation import Translation
from probattn.tasks.visual_questions import VisualQuestionTask

TASKS: list[type[Task[Any, Any]]] = [
    Graphs,
    Translation,
    GraphTextTask,
    VisualQuestionTask,
    Pretraining,
    Experiments,
    *FINE_TUNING,
    Classification,
]
"""All tasks. A recipe belongs to the first whose section it contains; classification, the last, needs no section."""


def task_class(sections: Mapping[str, Any]) -> type[Task[Any, Any]]:
    """The task of a recipe by its keys; ``TypeError`` where a task's section does not tell its recipes from others."""
    for task in TASKS:
        if task.section is None:
            continue
        if task.section not in task.recipe_class.model_fields:
            raise TypeError(
                f"{task.__name__}.section: expected a key of {task.recipe_class.__name__}, got {task.section!r}"
            )
        clash = next((method for method in METHODS if method.section == task.section), None)
        if clash is not None:
            raise TypeError(
                f"{task.__name__}.section: expected a key that is no method's, got {task.section!r} of {clash.__name__}"
            )
        for other in TASKS:
            if other is not task and task.section in other.recipe_class.model_fields:
                raise TypeError(
                    f"{task.__name__}.section: expected a key that no other task's recipes have, got {task.section!r}, "
                    f"which {other.__name__} has; choose another name"
                )
    return next(task for task in TASKS if task.section is None or task.section in sections)


def task_of(recipe: Any) -> Task[Any, Any]:
    """The task that a recipe belongs to.

    Example:
        >>> type(task_of(read_recipe("data: {train: imdb}"))).__name__
        'Classification'
    """
    return task_class(type(recipe).model_fields)(recipe)


def built_in_recipes() -> dict[str, Path]:
    """Files of the recipes of all tasks, by name: those in a folder "recipes" beside the task's module."""
    modules = (getattr(sys.modules[task.__module__], "__file__", None) for task in TASKS)
    folders = (Path(module).with_name("recipes") for module in modules if module is not None)
    return {file.stem: file for folder in folders for file in folder.glob("*") if file.suffix in SUFFIXES}


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with the library, sorted."""
    return tuple(sorted(built_in_recipes()))


def load_any_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Any:
    """Reads and checks a recipe of any task.

    The section of a task, such as ``graph``, ``translation`` or ``experiment``, makes a recipe one of this task;
    without such a section it is one of text classification.

    Args:
        path_or_name: a file that ends in .yaml or .yml, or the name of a recipe that comes with the library.
        overrides: keys to replace, as ``training.learning_rate=1e-4``; the values are YAML. Setting one of
            ``training.epochs`` and ``training.steps`` removes the other.

    Returns:
        The recipe, with all keys filled in and absolute paths.

    Raises:
        RecipeError: there is no such recipe, or it is invalid; the message is one line.

    Example:
        >>> load_any_recipe("cora_ct", ["graph.name=citeseer"]).graph.name
        'citeseer'
    """
    return load(path_or_name, overrides, _kind, built_in_recipes())


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe of text classification; arguments and errors as for :func:`load_any_recipe`.

    Example:
        >>> load_recipe("sentiment_babn", ["training.steps=100"]).training.steps
        100
    """
    return _of_texts(load_any_recipe(path_or_name, overrides), str(path_or_name))


def read_recipe(text: str, where: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    r"""Makes a recipe of text classification from YAML.

    Args:
        text: the YAML.
        where: name of the source, for messages.
        overrides: keys to replace, as ``training.learning_rate=1e-4``.

    Returns:
        The recipe, with all keys filled in; relative paths are not changed.

    Raises:
        RecipeError: the recipe is invalid; the message is one line.

    Example:
        >>> text = "data: {train: my.csv}\ntraining: {lerning_rate: 1}"
        >>> try:
        ...     read_recipe(text)
        ... except RecipeError as error:
        ...     print(error)
        recipe: unknown key 'lerning_rate' in training (line 2); did you mean 'learning_rate'?
    """
    return _of_texts(read(text, where, overrides, _kind), where)


def _kind(sections: Mapping[str, Any]) -> type[RunRecipe]:
    return task_class(sections).recipe_class


def _of_texts(recipe: Any, where: str) -> Recipe:
    task = task_class(type(recipe).model_fields)
    if task is not Classification:
        raise RecipeError(where, [f"expected a recipe of texts, got one with a section {task.section!r}"])
    return cast(Recipe, recipe)


def load_task(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Task[Any, Any]:
    """The task of a recipe; arguments and errors as for :func:`probattn.recipes.load_any_recipe`."""
    return task_of(load_any_recipe(path_or_name, overrides))


def run_task(run: Path | str) -> Task[Any, Any]:
    """The task of a run folder; ``RecipeError`` if its recipe is damaged, ``RunError`` if it has no recipe."""
    file = Path(run) / RECIPE
    if not file.exists():
        raise RunError(no_run(run))
    return load_task(file)


def run_of(folder: Path) -> Path:
    """The run that a folder is, or whose baseline it is; a run may have that name, too."""
    return folder.parent if folder.name == BASELINE and not (folder / RECIPE).exists() else folder


def load_network(folder: Path | str) -> Network[Any]:
    """Loads the trained network of a run, or the baseline within one.

    Args:
        folder: folder of the run, or its subfolder "baseline".

    Returns:
        The network, on the device on which it predicts, with its tokenizer or similar.

    Raises:
        RecipeError: the run's recipe is damaged.
        RunError: the folder holds no finished run, or one of a task without a single network.
    """
    path = Path(folder)
    return run_task(run_of(path)).network(path)


def load_results(run: Path | str) -> Any:
    """Reads the ``metrics.json`` of an evaluated run, as records of the class of its task.

    Raises:
        FileNotFoundError: the run was not evaluated.
        ResultsFileError: the file is damaged.
        RunError: the folder holds no run.
    """
    return read_results(Path(run) / RESULTS, run_task(run).view.results_class)
