"""Base class of tasks: what one kind of recipe trains, how it is measured, and how its results are formatted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from probattn.inference.run import FitResult
from probattn.tasks.answering import Answering, Deciding, Limits
from probattn.tasks.errors import RunError
from probattn.tasks.view import ResultsView, View

RECIPE = "recipe.yaml"
MODEL = "model"
BASELINE = "baseline"
RECORDS = "metrics.jsonl"
RESULTS = "metrics.json"
REPORT = "report.html"
SEEDS = "seeds"
"""Stem of the files that hold the comparison of several runs, in the folder of the first."""

AnyRecipe = TypeVar("AnyRecipe", bound=Any)
AnyResults = TypeVar("AnyResults")


@dataclass(frozen=True)
class Part:
    """One network of a run, or one condition of an experiment, that is trained separately.

    Attributes:
        name: "model", "baseline", or the name of a condition.
        fit: function of ``resume`` and ``quiet`` that trains it.
        save: function that saves the results in the folder of the run.
    """

    name: str
    fit: Callable[[bool, bool], FitResult]
    save: Callable[[], None] = lambda: None


class Task(ABC, Generic[AnyRecipe, AnyResults]):
    """Base class of tasks, one per kind of recipe. A new task is a subclass and an entry of ``probattn.tasks.TASKS``.

    :func:`probattn.tasks.train`, :func:`~probattn.tasks.evaluate` and :func:`~probattn.tasks.report` work for any task;
    :class:`probattn.tasks.ProgramTask` adds what tasks of one network and its baseline have in common.

    Args:
        recipe: recipe of the run.

    Attributes:
        section: key whose presence makes a recipe one of this task; None for classification, which needs none.
        recipe_class: class of the recipe.
        view: formatting of results.
        limits: which options can restrict an evaluation.
        restricted: options that restricted this evaluation, see :func:`limited`; empty for a complete one.
    """

    section: ClassVar[str | None] = None
    recipe_class: ClassVar[type[Any]]
    view: ClassVar[View[Any]] = ResultsView()
    limits: ClassVar[Limits] = Limits(
        "this kind of run is always measured as a whole", "no draws are made for this kind of run"
    )

    def __init__(self, recipe: AnyRecipe) -> None:
        self.recipe = recipe
        self.restricted = ""

    @abstractmethod
    def parts(self, folder: Path) -> Iterable[Part]:
        """The parts to train, in order; each is requested after the previous ones are trained.

        Problems that can be detected before training raise ``DataError`` or ``RunError`` here, before a file is
        written.
        """

    @abstractmethod
    def evaluate(self, run: Path, baseline: Path | None = None) -> AnyResults:
        """Measures a finished run.

        Args:
            run: folder of the run.
            baseline: folder of a deterministic run to compare with; None for the baseline within the run.

        Raises:
            DataError: the data have changed since training.
            RunError: the folder holds no finished run, or the baseline does not fit.
        """

    def notes(self) -> Iterable[str]:
        """Lines about the data that are printed before training."""
        return ()

    def data_summary(self) -> Iterable[str]:
        """Lines about the data that are printed after training."""
        return ()

    def network(self, folder: Path) -> Any:
        """Loads a trained network from the folder of its records.

        Raises:
            RunError: the folder holds no finished run, or runs of the task have no single network.
        """
        raise RunError(f"{folder}: expected a run of one network, got one of {self.section}")

    @property
    def no_probe(self) -> str | None:
        """Reason why the run's networks have no lexical probe; None if they have one."""
        return "expected a run of texts or of translation, got another run"

    @property
    def answering(self) -> Answering | str:
        """Prediction of inputs of users, or the reason why the task has none."""
        return f"expected a run that answers texts, got one of {self.section or 'another kind'}"

    @property
    def deciding(self) -> Deciding | str:
        """Decisions about which predictions to accept (:mod:`probattn.triage`), or the reason why the task has none."""
        return (
            "expected a run of classes, choices, images, labels, numbers, spans or tokens, got one of "
            f"{self.section or 'another kind'}"
        )
