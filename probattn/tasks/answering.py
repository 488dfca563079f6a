"""Capabilities of a task: predictions for inputs of users, decisions by held-out data, restricted evaluation."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from probattn.data.rows import text_of
from probattn.files.durable import write_atomically
from probattn.files.spreadsheets import escaped
from probattn.options import DrawingOptions, Uncertainty
from probattn.tasks.errors import RunError

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.inference import Explanation
    from probattn.inference.laplace import Features
    from probattn.report import Sheet
    from probattn.tasks.held_out import HeldOut

PREDICTIONS = "predictions.csv"
"""The predictions of an evaluation, in the folder of its run."""
DIGITS = 6
"""Digits behind the point of figures in answers."""

Capability = TypeVar("Capability")


class Drawing(NamedTuple):
    """Options of a prediction.

    Attributes:
        num_samples: number of posterior draws.
        seed: seed of the draws.
        chunk_size: number of draws per forward pass; None for all.
        batch_size: number of examples per batch.
        uncertainty: source of probabilities and uncertainty: "draws", or their closed form, "moments".
    """

    num_samples: int = 20
    seed: int = 0
    chunk_size: int | None = None
    batch_size: int = 32
    uncertainty: Uncertainty = "draws"

    @classmethod
    def of(cls, section: Any = None, options: DrawingOptions | None = None) -> Self:
        """Options of a prediction; those that are None take the values of a recipe's section.

        Args:
            section: object with some of the attributes; None for the defaults.
            options: options of a prediction; None for those of the section.
        """
        usual = {name: getattr(section, name) for name in cls._fields if hasattr(section, name)}
        changed = {name: getattr(options, name, None) for name in cls._fields}
        return cls(**{**usual, **{name: value for name, value in changed.items() if value is not None}})


class Answering(ABC):
    """Predictions of a finished run for inputs of users; an "answer" is the prediction for one input.

    Args:
        task: task of the run.

    Attributes:
        reads: description of the inputs, for tasks without second texts.
        undrawn: reason why predictions use no draws; None if ``num_samples`` and ``seed`` have an effect.
        no_moments: reason why the uncertainty has no closed form; None if it has one.
    """

    reads: ClassVar[str] = "single texts"
    undrawn: ClassVar[str | None] = None
    no_moments: ClassVar[str | None] = None

    def __init__(self, task: Any) -> None:
        self.task = task

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Default names of the columns of the texts and of the second texts; None for the latter if there are none."""
        return "text", None

    @property
    def quotes(self) -> bool:
        """Whether fields of a .csv or .tsv file of inputs may be enclosed in double quotes."""
        return True

    def second_text(self, row: Mapping[str, Any], column: str, where: str) -> Any:
        """The second text of a row of a file; ``DataError`` names the position of a row without one."""
        return text_of(row.get(column), column, where)

    def check(self, run: Path) -> Callable[[str], object] | None:
        """A function that raises :class:`RunError` for texts that :meth:`predict` refuses; None if it refuses none."""
        return None

    def predict(
        self,
        run: Path,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        options: DrawingOptions | None = None,
    ) -> Iterator[Any]:
        """Predicts texts, reading them batch by batch.

        Args:
            run: folder of a finished run.
            texts: the texts.
            pairs: the second text of each, if the task is about pairs.
            options: number of draws, their seed, and the source of probabilities and uncertainty.

        Returns:
            A lazy iterator with one answer per text; :meth:`answers` formats answers for display, :meth:`columns` for
            files.

        Raises:
            RunError: the folder holds no finished run, its network does not read such inputs, or the task does not have
                the draws or the closed form that ``options`` request.
        """
        paired = self.columns_read[1] is not None
        if paired and pairs is None:
            raise RunError(
                f"{run}: its network reads pairs of texts; expected a second text for each, got none"
            )
        if pairs is not None and not paired:
            raise RunError(f"{run}: its network reads {self.reads}; expected no second texts")
        drawing = self.drawing(options or DrawingOptions())
        if drawing.uncertainty != "draws" and self.no_moments is not None:
            raise RunError(f"{run}: expected uncertainty draws, got {drawing.uncertainty}: {self.no_moments}")
        rows = ((text, None) for text in texts) if pairs is None else zip(texts, pairs, strict=True)
        return self.answered(run, rows, drawing)

    def drawing(self, options: DrawingOptions) -> Drawing:
        """Options of a prediction: those of ``options``, and where these are None those of the recipe.

        Raises:
            RunError: options of draws are set, but the task's predictions use none.
        """
        for name in ("num_samples", "seed"):
            value = getattr(options, name)
            if value is not None and self.undrawn is not None:
                option = f"--{name.replace('_', '-')} {value}"
                raise RunError(f"{option}: expected no such option, {self.undrawn}; leave it out")
        return Drawing.of(getattr(self.task.recipe, "prediction", None), options)

    @abstractmethod
    def answered(self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing) -> Iterator[Any]:
        """Answers for texts and second texts that :meth:`predict` has checked, with the options ``drawing``."""

    @abstractmethod
    def answers(self, answers: Sequence[Any]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """Answers as text or a table for a terminal, and as a list with one JSON object per answer."""

    @abstractmethod
    def columns(self, answer: Any) -> dict[str, Any]:
        """One answer as values by column, for a file; all answers of a run have the same columns."""


class Deciding(ABC):
    """What :mod:`probattn.triage` needs from a task whose predictions are right or wrong.

    Args:
        task: task of the run.

    Attributes:
        needs_draws: reason why decisions need a network with draws; None if they do not.
        tolerance: largest error of a number that counts as right; None for tasks without numbers.
        wrong_when: description of when a prediction is wrong; None for classes.
    """

    needs_draws: ClassVar[str | None] = None
    tolerance: float | None = None
    wrong_when: str | None = None

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """Data that fit and test a decision policy, by role, validation first; ``file`` replaces the test data."""

    @abstractmethod
    def predict(self, run: Path, inputs: HeldOut, drawing: Drawing) -> Iterator[Any]:
        """Answers of the finished run in folder ``run`` for ``inputs`` of :meth:`held_out`."""

    @abstractmethod
    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds to a JSON object of :meth:`Answering.answers` what a policy needs: class name or "uncertainty"."""

    @abstractmethod
    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether an answer differs from ``truth``, the true answer in :meth:`held_out`."""

    def within(self, tolerance: float | None) -> Self:
        """This object with another tolerance, None for none; ``RunError`` if the task takes none, or needs one."""
        if tolerance is not None:
            raise RunError(f"--tolerance {tolerance:g}: expected a run of numbers with it; leave it out")
        return self

    @abstractmethod
    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """A function that computes last-layer features of a run's network, to detect inputs unlike the training data.

        Returns:
            A function of inputs, or of None for the training examples with their classes.

        Raises:
            RunError: the network has no last layer that reads one vector per input.
        """

    def reasons(self, run: Path) -> Callable[[Mapping[str, Any]], Explanation | None] | None:
        """A function that finds the words behind an answer (for, against, uncertain); None if the task has none.

        Its argument is one JSON object of :meth:`Answering.answers`.
        """
        return None


def required(capability: Capability | str, run: Path) -> Capability:
    """Returns a capability of a task, such as ``task.answering``.

    Raises:
        RunError: the task lacks the capability; ``capability`` is then a string with the reason.
    """
    if isinstance(capability, str):
        raise RunError(f"{run}: {capability}")
    return capability


def write_predictions(run: Path, rows: Iterable[Mapping[str, Any]], inputs: Sequence[str]) -> None:
    """Writes predictions of measured examples, lists as JSON; all but ``inputs`` are escaped for spreadsheets."""
    written = [
        {
            name: value if name in inputs and isinstance(value, str) else _cell(value)
            for name, value in row.items()
        }
        for row in rows
    ]
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in written for name in row)))
    writer.writeheader()
    writer.writerows(written)
    write_atomically(run / PREDICTIONS, file.getvalue().encode(errors="replace"))


def _cell(value: Any) -> Any:
    if isinstance(value, (list, dict, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return escaped(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Limits:
    """Whether a task accepts the options that restrict an evaluation: None if it does, else the reason why not.

    ``--limit`` lowers the numbers in ``limits`` of the recipe's data, ``--num-samples`` replaces its number of samples.

    Attributes:
        examples: for ``--limit``.
        draws: for ``--num-samples``.
    """

    examples: str | None = None
    draws: str | None = None


def limited(task: Any, limit: int | None = None, num_samples: int | None = None) -> Any:
    """A task whose evaluation is restricted to a part of its data, or uses another number of draws.

    Args:
        task: task of a run.
        limit: maximum number of examples of each evaluated data set, always the same ones; None: the recipe's number.
        num_samples: number of posterior draws; None: the recipe's number.

    Returns:
        A task with a changed recipe, whose results mention the restriction.

    Raises:
        RunError: the task has no such option.
    """
    options = {"--limit": (limit, task.limits.examples), "--num-samples": (num_samples, task.limits.draws)}
    for option, (value, problem) in options.items():
        if value is not None and problem is not None:
            raise RunError(f"{option} {value}: expected no such option, {problem}; leave it out")
    recipe = task.recipe
    if limit is not None:
        recipe = recipe.model_copy(update=dict(_with_fewer(recipe, limit)))
    if num_samples is not None:
        prediction = recipe.prediction.model_copy(update={"num_samples": num_samples})
        recipe = recipe.model_copy(update={"prediction": prediction})
    restricted = type(task)(recipe)
    restricted.restricted = " ".join(
        f"{option} {value}" for option, (value, _) in options.items() if value is not None
    )
    return restricted


def _with_fewer(recipe: Any, limit: int) -> Iterator[tuple[str, Any]]:
    """Sections of a recipe that have ``limits``, with at most ``limit`` examples of each data set that is measured."""
    for name in type(recipe).model_fields:
        section = getattr(recipe, name)
        limits = getattr(section, "limits", None)
        if limits is not None:
            measured = type(limits).model_fields.keys() - {"train", "validation"}
            fewer = {role: min(limit, getattr(limits, role) or limit) for role in measured}
            yield name, section.model_copy(update={"limits": limits.model_copy(update=fewer)})
