"""What a task brings that answers inputs of users, decides by held-out data, and restricts its evaluation."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

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
    """How to predict.

    Attributes:
        num_samples: number of posterior draws.
        seed: of the draws.
        chunk_size: draws that go through the network at once; None for all.
        batch_size: examples of a batch.
        uncertainty: what probabilities and their uncertainty come from, "draws" or their closed form, "moments".
    """

    num_samples: int = 20
    seed: int = 0
    chunk_size: int | None = None
    batch_size: int = 32
    uncertainty: Uncertainty = "draws"

    @classmethod
    def of(cls, section: Any = None, options: DrawingOptions | None = None) -> Self:
        """What options ask for and, where they leave it out, what a recipe's section does.

        Args:
            section: with some of the attributes; None for the defaults.
            options: of a prediction; None for those of the section.
        """
        usual = {name: getattr(section, name) for name in cls._fields if hasattr(section, name)}
        changed = {name: getattr(options, name, None) for name in cls._fields}
        return cls(**{**usual, **{name: value for name, value in changed.items() if value is not None}})


class Answering(ABC):
    """Answers of a finished run to inputs that a user names.

    Args:
        task: of the run.

    Attributes:
        reads: what the network reads, in words, where there are no second texts.
        undrawn: why answers come without draws; None where ``num_samples`` and ``seed`` count.
        no_moments: why there is no closed form of their uncertainty; None where there is one.
    """

    reads: ClassVar[str] = "single texts"
    undrawn: ClassVar[str | None] = None
    no_moments: ClassVar[str | None] = None

    def __init__(self, task: Any) -> None:
        self.task = task

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Usual columns of the texts, and of the second texts where the task is about pairs."""
        return "text", None

    @property
    def quotes(self) -> bool:
        """Whether fields of a .csv or .tsv file of inputs may stand in double quotes."""
        return True

    def check(self, run: Path) -> Callable[[str], object] | None:
        """What raises :class:`RunError` for a text that :meth:`predict` would refuse; None where it takes any."""
        return None

    def predict(
        self,
        run: Path,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        options: DrawingOptions | None = None,
    ) -> Iterator[Any]:
        """Answers for texts, which are read and answered batch by batch.

        Args:
            run: folder of a finished run.
            texts: what to answer for.
            pairs: the second text of each, where the task is about pairs.
            options: number of draws, their seed, and what probabilities and their uncertainty come from.

        Returns:
            One answer a text, as they are asked for; :meth:`answers` shows them, :meth:`columns` has them for files.

        Raises:
            RunError: the folder holds no finished run, its network does not read such inputs, or has no draws of which
                options are there.
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
        """How to predict, by options and, where they leave it out, by the recipe.

        Raises:
            RunError: options of draws, where answers come without them.
        """
        for name in ("num_samples", "seed"):
            value = getattr(options, name)
            if value is not None and self.undrawn is not None:
                option = f"--{name.replace('_', '-')} {value}"
                raise RunError(f"{option}: expected no such option, {self.undrawn}; leave it out")
        return Drawing.of(getattr(self.task.recipe, "prediction", None), options)

    @abstractmethod
    def answered(self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing) -> Iterator[Any]:
        """Answers for texts and second texts, of which the network reads what :meth:`predict` has checked.

        ``drawing`` has the number of draws, their seed and ``uncertainty``.
        """

    @abstractmethod
    def answers(self, answers: Sequence[Any]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """Answers for a terminal and, one object an answer, for programs."""

    @abstractmethod
    def columns(self, answer: Any) -> dict[str, Any]:
        """One answer by column, for a file; the same columns for every answer of a run."""


class Deciding(ABC):
    """What :mod:`probattn.triage` needs of a task whose answers are right or wrong.

    Args:
        task: of the run.

    Attributes:
        needs_draws: why a network without draws cannot be decided about; None where it can.
        tolerance: how far from the true answer one may be; None where that does not count.
        wrong_when: when an answer is wrong, in words; None for classes.
    """

    needs_draws: ClassVar[str | None] = None
    tolerance: float | None = None
    wrong_when: str | None = None

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """Data by which it is decided what to answer, by role, validation first; ``file`` replaces the test data."""

    @abstractmethod
    def predict(self, run: Path, inputs: HeldOut, drawing: Drawing) -> Iterator[Any]:
        """Answers for inputs of :meth:`held_out`, as :meth:`Answering.predict` gives them.

        ``run`` is the folder of a finished run, ``inputs`` what :meth:`held_out` gives, ``drawing`` how to predict.
        """

    @abstractmethod
    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """An object of :meth:`Answering.answers` with what a policy reads: its class, or its "uncertainty"."""

    @abstractmethod
    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether an answer is wrong, given the true one of :meth:`held_out`."""

    def within(self, tolerance: float | None) -> Self:
        """The same with a tolerance or, for None, without; ``RunError`` where the task has none, or needs one."""
        if tolerance is not None:
            raise RunError(f"--tolerance {tolerance:g}: expected a run of numbers with it; leave it out")
        return self

    @abstractmethod
    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """What reads the features of a finished run's last layer, by which inputs are unlike the training data.

        Returns:
            A function of inputs, or of None for training examples with their classes.

        Raises:
            RunError: the network has no such layer, one that reads a vector for each input.
        """

    def reasons(self, run: Path) -> Callable[[Mapping[str, Any]], Explanation | None] | None:
        """What names the words for and against an answer and those that make it unsure; None where nothing does.

        It is a function of one object of :meth:`Answering.answers`.
        """
        return None


def required(capability: Capability | str, run: Path) -> Capability:
    """A capability of a task.

    Raises:
        RunError: the task lacks it and says why.
    """
    if isinstance(capability, str):
        raise RunError(f"{run}: {capability}")
    return capability


def write_predictions(run: Path, rows: Iterable[Mapping[str, Any]], inputs: Sequence[str]) -> None:
    """Writes a run's predictions of measured examples, one a row; lists and objects as JSON.

    Values that a spreadsheet would take for a formula are escaped, except those of the columns ``inputs``.
    """
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
    """Options that restrict an evaluation: None where a task takes one, else why not.

    The number of examples is that of the recipe's section with ``limits``, the number of draws ``num_samples`` of its
    section ``prediction``.

    Attributes:
        examples: of ``--limit``.
        draws: of ``--num-samples``.
    """

    examples: str | None = None
    draws: str | None = None


def limited(task: Any, limit: int | None = None, num_samples: int | None = None) -> Any:
    """A task whose evaluation is of a part of its data, or of another number of draws.

    Args:
        task: of a run.
        limit: most examples of each data set that is measured, a fixed choice; None for the recipe's.
        num_samples: posterior draws; None for the recipe's.

    Returns:
        A task of a changed recipe, whose results say so.

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
