"""What a recipe can ask for: one folder a task, and what is common to all of them.

A task says which data it reads, which Pyro program it trains, what it measures and how the results read;
:func:`train`, :func:`evaluate` and :func:`report` are written once. A new task is a subclass of :class:`Task` (or of
:class:`ProgramTask`, which has a network, a baseline and their training) and a line in :data:`TASKS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probattn.inference.report import read_results
from probattn.recipes import load_any_recipe
from probattn.tasks.classification import Classification
from probattn.tasks.errors import RunError
from probattn.tasks.experiments import Experiments
from probattn.tasks.graphs import Graphs
from probattn.tasks.programs import Data, Network, ProgramTask
from probattn.tasks.run import evaluate, evaluate_runs, report, train, write_page
from probattn.tasks.task import BASELINE, RECIPE, RESULTS, Part, Task
from probattn.tasks.translation import Translation

TASKS: list[type[Task[Any, Any]]] = [Graphs, Translation, Experiments, Classification]
"""All tasks; a recipe is of the first whose section it has, and of classification if it has none of them."""


def task_of(recipe: Any) -> Task[Any, Any]:
    """The task that a recipe is of.

    Example:
        >>> from probattn.recipes import read_recipe
        >>> type(task_of(read_recipe("data: {train: imdb}"))).__name__
        'Classification'
    """
    sections = type(recipe).model_fields
    return next(task for task in TASKS if task.section is None or task.section in sections)(recipe)


def load_task(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Task[Any, Any]:
    """The task of a recipe, read as :func:`probattn.recipes.load_any_recipe` does.

    Raises:
        RecipeError: no such recipe, or what is wrong with it, in one line.
    """
    return task_of(load_any_recipe(path_or_name, overrides))


def run_task(run: Path | str) -> Task[Any, Any]:
    """The task of a run folder.

    Raises:
        RecipeError: its recipe is damaged.
        RunError: it has none.
    """
    file = Path(run) / RECIPE
    if not file.exists():
        raise RunError(f"{run}: expected a run folder with {RECIPE}, found none")
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
    place = Path(folder)
    task = run_task(place.parent if place.name == BASELINE and not (place / RECIPE).exists() else place)
    if not isinstance(task, ProgramTask):
        raise RunError(f"{folder}: expected a run of one network, got one of {task.section}")
    found: Network[Any] = task.network(place)
    return found


def load_results(run: Path | str) -> Any:
    """Reads the ``metrics.json`` of a run that was evaluated; the records are of its task's class.

    Raises:
        FileNotFoundError: it was not evaluated.
        ResultsFileError: the file is damaged.
        RunError: no run.
    """
    return read_results(Path(run) / RESULTS, run_task(run).results_class)


__all__ = [
    "TASKS",
    "Classification",
    "Data",
    "Experiments",
    "Graphs",
    "Network",
    "Part",
    "ProgramTask",
    "RunError",
    "Task",
    "Translation",
    "evaluate",
    "evaluate_runs",
    "load_network",
    "load_results",
    "load_task",
    "report",
    "run_task",
    "task_of",
    "train",
    "write_page",
]
