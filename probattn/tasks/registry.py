"""All tasks, and what is found by them: recipes, runs, trained networks, results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
"""A recipe is of the first whose section it has; classification, the last, has none."""


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
    """The task that a recipe is of.

    Example:
        >>> type(task_of(read_recipe("data: {train: imdb}"))).__name__
        'Classification'
    """
    return task_class(type(recipe).model_fields)(recipe)


def built_in_recipes() -> dict[str, Traversable]:
    """Files of the recipes that come with tasks, by name: those in a folder "recipes" beside the task's module."""
    recipes: dict[str, Traversable] = {}
    for task in TASKS:
        module = getattr(sys.modules[task.__module__], "__file__", None)
        folder = None if module is None else Path(module).with_name("recipes")
        recipes |= _recipes(folder) if folder is not None and folder.is_dir() else {}
    return recipes


def _recipes(folder: Traversable) -> dict[str, Traversable]:
    entries = {Path(entry.name): entry for entry in folder.iterdir()}
    return {name.stem: entry for name, entry in entries.items() if name.suffix in SUFFIXES}


def recipe_names(folder: Traversable | None = None) -> tuple[str, ...]:
    """Names of the recipes that come with the library, sorted.

    Args:
        folder: where recipes are kept; by default those of all tasks.
    """
    return tuple(sorted(built_in_recipes() if folder is None else _recipes(folder)))


def load_any_recipe(
    path_or_name: str | Path, overrides: Sequence[str] = (), *, folder: Traversable | None = None
) -> Any:
    """Reads a recipe of any task and checks all of it.

    A section ``graph`` makes it one of a graph, a section ``translation`` one of translation, a section ``experiment``
    one of a synthetic experiment; others are of texts.

    Args:
        path_or_name: a file that ends in .yaml or .yml, or the name of a recipe that comes with the library.
        overrides: keys to replace, as ``training.learning_rate=1e-4``; the values are YAML. Giving one of
            ``training.epochs`` and ``training.steps`` drops the other.
        folder: where named recipes are kept; by default those of all tasks.

    Returns:
        The recipe, every key filled in, paths absolute.

    Raises:
        RecipeError: no such recipe, or what is wrong with it, in one line.

    Example:
        >>> load_any_recipe("cora_ct", ["graph.name=citeseer"]).graph.name
        'citeseer'
    """
    built_in = built_in_recipes() if folder is None else _recipes(folder)
    return load(path_or_name, overrides, _kind, built_in)


def load_recipe(
    path_or_name: str | Path, overrides: Sequence[str] = (), *, folder: Traversable | None = None
) -> Recipe:
    """Reads a recipe of texts; arguments and errors as for :func:`load_any_recipe`.

    Example:
        >>> load_recipe("sentiment_babn", ["training.steps=100"]).training.steps
        100
    """
    return _of_texts(load_any_recipe(path_or_name, overrides, folder=folder), str(path_or_name))


def read_recipe(
    text: str, where: str = "recipe", overrides: Sequence[str] = (), *, name: str | None = None
) -> Recipe:
    r"""Makes a recipe of texts from YAML.

    Args:
        text: the YAML.
        where: what it is, for messages.
        overrides: keys to replace, as ``training.learning_rate=1e-4``.
        name: the run's name where the text gives none.

    Returns:
        The recipe, every key filled in; relative paths stay as they are.

    Raises:
        RecipeError: what is wrong with it, in one line.

    Example:
        >>> text = "data: {train: my.csv}\ntraining: {lerning_rate: 1}"
        >>> try:
        ...     read_recipe(text)
        ... except RecipeError as error:
        ...     print(error)
        recipe: unknown key 'lerning_rate' in training (line 2); did you mean 'learning_rate'?
    """
    return _of_texts(read(text, where, overrides, _kind, name=name), where)


def _kind(sections: Mapping[str, Any]) -> type[RunRecipe]:
    kind: type[RunRecipe] = task_class(sections).recipe_class
    return kind


def _of_texts(recipe: Any, where: str) -> Recipe:
    task = task_class(type(recipe).model_fields)
    if task is not Classification:
        raise RecipeError(where, [f"expected a recipe of texts, got one with a section {task.section!r}"])
    return cast(Recipe, recipe)


def load_task(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Task[Any, Any]:
    """The task of a recipe; arguments and errors as for :func:`load_any_recipe`."""
    return task_of(load_any_recipe(path_or_name, overrides))


def run_task(run: Path | str) -> Task[Any, Any]:
    """The task of a run folder; ``RecipeError`` where its recipe is damaged, ``RunError`` where it has none."""
    file = Path(run) / RECIPE
    if not file.exists():
        raise RunError(no_run(run))
    return load_task(file)


def load_network(folder: Path | str) -> Network[Any]:
    """Loads the trained network of a run, or the baseline within one.

    Args:
        folder: of the run, or its folder "baseline".

    Returns:
        The program on the device where it predicts, with what it reads and writes with.

    Raises:
        RecipeError: the run's recipe is damaged.
        RunError: no finished run, or one of a task without a single network.
    """
    path = Path(folder)
    task = run_task(path.parent if path.name == BASELINE and not (path / RECIPE).exists() else path)
    network: Network[Any] = task.network(path)
    return network


def load_results(run: Path | str) -> Any:
    """Reads the ``metrics.json`` of a run that was evaluated; the records are of its task's class.

    Raises:
        FileNotFoundError: it was not evaluated.
        ResultsFileError: the file is damaged.
        RunError: no run.
    """
    return read_results(Path(run) / RESULTS, run_task(run).view.results_class)
