"""A task: what one kind of recipe trains, how it is measured, and how the results read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from probattn.inference.last_layer import Features
from probattn.inference.moments import Uncertainty
from probattn.inference.run import FitResult
from probattn.report import Results, Sheet, combine, headline, render_report, results_table
from probattn.report.terminal import comparisons
from probattn.tasks.errors import RunError
from probattn.tasks.held_out import HeldOut

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
        results_class: the class of the records in ``metrics.json``. Where it is another than that of predictions, with
            which the report, the table and the comparison over seeds come, a task brings its own ``headline``,
            ``table`` and ``page``.
        no_seeds: why several runs of this task are not compared over their seeds; None where they are.
        unit: what its data are counted in, in the plural.
        no_limit: why ``--limit`` cannot be given; None where :meth:`limited` takes it.
        no_draws: the same for ``--num-samples``.
        undrawn: why answers of :meth:`predict` come without draws; None where ``num_samples`` and ``seed`` count.
        restricted: the options by which :meth:`limited` restricts the evaluation; empty for a whole one.
    """

    section: ClassVar[str | None] = None
    recipe_class: ClassVar[type[Any]]
    results_class: ClassVar[type[Any]] = Results
    no_seeds: ClassVar[str | None] = None
    unit: ClassVar[str] = "examples"
    no_limit: ClassVar[str | None] = "this kind of run is always measured as a whole"
    no_draws: ClassVar[str | None] = "no draws are made for this kind of run"
    undrawn: ClassVar[str | None] = None

    def __init__(self, recipe: AnyRecipe) -> None:
        self.recipe = recipe
        self.restricted = ""

    @abstractmethod
    def parts(self, folder: Path) -> Iterable[Part]:
        """The parts to train, in order; each is requested when those before it are trained.

        Whatever can be refused is refused here, before the first file is written.

        Args:
            folder: of the run, which may not be there yet.

        Raises:
            DataError: the data are not what the recipe says.
            RunError: the recipe asks for what cannot be done.
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

    @classmethod
    def headline(cls, results: AnyResults) -> str:
        """The main result, in one line."""
        return headline(cast(Results, results))

    @classmethod
    def table(cls, results: AnyResults) -> Sheet:
        """The results for a terminal."""
        return results_table(cast(Results, results))

    @classmethod
    def page(cls, results: AnyResults) -> str:
        """The report: one HTML page that needs nothing but itself."""
        return render_report(cast(Results, results))

    @classmethod
    def summary(cls, results: AnyResults) -> dict[str, Any]:
        """The headline and the comparisons behind it, for programs."""
        words = {"headline": cls.headline(results)}
        if not issubclass(cls.results_class, Results):
            return words
        measured = cast(Results, results)
        return {**words, "seeds": measured.seeds, "comparisons": comparisons(measured)}

    @classmethod
    def combine(cls, results: Mapping[str, AnyResults]) -> AnyResults:
        """The comparison of several runs over their seeds, by the path of their folders.

        Raises:
            ValueError: the evaluations do not fit each other.
        """
        return cast(AnyResults, combine(cast(Mapping[str, Results], results)))

    def notes(self) -> Iterable[str]:
        """Lines about the data that are printed before training."""
        return ()

    def evaluation_notes(self) -> Iterable[str]:
        """Lines about what is measured, printed before an evaluation."""
        return ()

    def sizes(self) -> Mapping[str, int]:
        """Number of :attr:`unit` for training, validation and testing, by these words; empty where there are none."""
        return {}

    def classes(self) -> Mapping[str, int]:
        """Number of training examples of each class; empty where there are no classes."""
        return {}

    def limited(self, limit: int | None = None, num_samples: int | None = None) -> Self:
        """The same task, evaluated on a part of its data or with another number of draws.

        Args:
            limit: most examples of each data set that is measured, a fixed choice; None for the recipe's.
            num_samples: posterior draws; None for the recipe's.

        Returns:
            A task of a changed recipe, whose results say so.

        Raises:
            RunError: the task has no such option.
        """
        given = {"--limit": (limit, self.no_limit), "--num-samples": (num_samples, self.no_draws)}
        requested = {option: value for option, (value, _) in given.items() if value is not None}
        for option, problem in (
            (option, problem) for option, (_, problem) in given.items() if option in requested
        ):
            if problem is not None:
                raise RunError(
                    f"{option} {requested[option]}: expected no such option, {problem}; leave it out"
                )
        task = type(self)(self.restricted_recipe(limit, num_samples) if requested else self.recipe)
        task.restricted = " ".join(f"{option} {value}" for option, value in requested.items())
        return task

    def restricted_recipe(self, limit: int | None, num_samples: int | None) -> AnyRecipe:
        """The recipe with the options of :meth:`limited`, which has checked that the task has them."""
        # Not abstract: limited calls it only where the task has one of the options, and refuses others by name.
        raise NotImplementedError(
            f"{type(self).__name__}: a task whose evaluation can be limited overrides this"
        )

    def input_columns(self) -> tuple[str, str | None]:
        """Usual columns of the texts, and of the second texts where the task is about pairs."""
        return "text", None

    @property
    def quotes(self) -> bool:
        """Whether fields of a .csv or .tsv file of inputs may stand in double quotes."""
        return True

    def input_check(self, run: Path) -> Callable[[str], object] | None:
        """What raises :class:`RunError` for a text that :meth:`predict` would refuse; None where it takes any.

        Args:
            run: folder of a finished run.
        """
        return None

    def predict(
        self,
        run: Path,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        num_samples: int = 20,
        seed: int = 0,
        uncertainty: Uncertainty = "draws",
    ) -> Iterator[Any]:
        """Answers for texts, which are read and answered batch by batch.

        Args:
            run: folder of a finished run.
            texts: what to answer for.
            pairs: the second text of each, where the task is about pairs.
            num_samples: posterior draws.
            seed: of the draws.
            uncertainty: what probabilities and their uncertainty come from, "draws" or their closed form, "moments".

        Returns:
            One answer a text, as they are asked for; :meth:`answers` shows them, :meth:`columns` has them for files.

        Raises:
            RunError: the folder holds no finished run, or the task takes no texts.
        """
        raise RunError(
            f"{run}: expected a run that answers texts, got one of {self.section or 'another kind'}"
        )

    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """Data by which :mod:`probattn.triage` decides what to answer, by role; the first is validation data.

        Args:
            file: of held-out inputs with their classes, in place of the run's test data.

        Raises:
            DataError: the data are not what the recipe says.
            RunError: the task does not give one class to each input.
        """
        raise RunError(
            f"expected a run that gives one class to each input, got one of {self.section or 'another kind'}"
        )

    def predict_held_out(self, run: Path, held: HeldOut, **drawing: Any) -> Iterator[Any]:
        """Answers for held-out inputs, as :meth:`predict` gives them.

        Args:
            run: folder of a finished run.
            held: inputs of :meth:`held_out`.
            **drawing: options of :meth:`predict`.
        """
        return self.predict(run, held.texts, held.pairs, **drawing)

    def why_unsure(self, run: Path) -> Callable[[Mapping[str, Any]], Sequence[str]] | None:
        """What names the words from whose attention the uncertainty of an answer comes; None where nothing does.

        Args:
            run: folder of a finished run.

        Returns:
            A function of one object of :meth:`answers`.
        """
        return None

    def last_features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """What reads the features of a run's last layer, by which inputs are unlike the training data.

        Args:
            run: folder of a finished run.

        Returns:
            A function of inputs, or of None for training examples with their classes.

        Raises:
            RunError: the task has no such layer, one that reads a vector for each input.
        """
        raise RunError(
            f"{run}: expected a run that gives a class to each text or image, got one of "
            f"{self.section or 'another kind'}"
        )

    @classmethod
    def answers(cls, found: Sequence[Any]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """The answers of :meth:`predict`, for a terminal and, one object an answer, for programs."""
        # Not abstract: predict refuses a task that answers no texts before this is called, so such a task needs none.
        raise NotImplementedError(f"{cls.__name__}: a task that overrides predict overrides answers too")

    @classmethod
    def columns(cls, answer: Any) -> dict[str, Any]:
        """One answer of :meth:`predict` by column, for a file; the same columns for every answer of a run."""
        # Not abstract, for the same reason as answers: a task that answers no texts is refused by predict.
        raise NotImplementedError(f"{cls.__name__}: a task that overrides predict overrides columns too")
