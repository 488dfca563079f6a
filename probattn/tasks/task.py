"""A task: what one kind of recipe trains, how it is measured, and how the results read."""

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


def _nothing() -> None:
    """Saves nothing."""


@dataclass(frozen=True)
class Part:
    """One network of a run, or one condition of an experiment, which is trained by itself.

    Attributes:
        name: "model", "baseline", or a condition's name.
        fit: trains it; called with ``resume`` and ``quiet``.
        save: keeps the results in the folder of the run.
    """

    name: str
    fit: Callable[[bool, bool], FitResult]
    save: Callable[[], None] = _nothing


class Task(ABC, Generic[AnyRecipe, AnyResults]):
    """One kind of run. A new kind is a subclass in a folder of its own and a line in ``probattn.tasks.TASKS``.

    What is common to all kinds is in :mod:`probattn.tasks.run`: training into a folder, resuming, evaluating and
    reporting. :class:`probattn.tasks.ProgramTask` adds what tasks of one network and its baseline share.

    Args:
        recipe: what was asked for.

    Attributes:
        section: the key of a recipe that makes it one of this task; None for classification, which needs none.
        recipe_class: the recipe's class.
        view: how results read.
        limits: the options that restrict an evaluation.
        restricted: those by which it was restricted, see :func:`limited`; empty for a whole one.
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
        """The parts to train, in order; each is requested when those before it are trained.

        Whatever can be refused, by ``DataError`` or ``RunError``, is refused here, before the first file is written.
        """

    @abstractmethod
    def evaluate(self, run: Path, baseline: Path | None = None) -> AnyResults:
        """Measures a finished run.

        Args:
            run: its folder.
            baseline: folder of a deterministic run to compare with; None for the one within the run.

        Raises:
            DataError: the data are not what they were.
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
        """Why the run's networks have no lexical probe; None where they have one."""
        return "expected a run of texts or of translation, got another run"

    @property
    def answering(self) -> Answering | str:
        """How inputs of users are answered, or why they are not."""
        return f"expected a run that answers texts, got one of {self.section or 'another kind'}"

    @property
    def deciding(self) -> Deciding | str:
        """How it is decided which answers can stand, or why it is not."""
        return (
            "expected a run of classes, choices, images, labels, numbers, spans or tokens, got one of "
            f"{self.section or 'another kind'}"
        )
