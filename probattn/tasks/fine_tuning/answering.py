"""Answers of pretrained networks with a head to inputs that a user names, and decisions which answers can stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from probattn.inference.laplace import Features
from probattn.report import Sheet
from probattn.report.record import Record
from probattn.tasks.answering import DIGITS, Answering, Deciding, Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.predictor import Predictor
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.held_out import HeldOut
from probattn.tasks.networks import in_batches

if TYPE_CHECKING:
    from probattn.tasks.fine_tuning.task import HeadTask


class HeadAnswering(Answering):
    """Answers of a head, batch by batch."""

    task: HeadTask

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Those of the section of examples."""
        return self.task.section_of_examples.columns_read

    @property
    def quotes(self) -> bool:
        """As in the training data."""
        return bool(self.task.section_of_examples.quotes)

    def second_text(self, row: Mapping[str, Any], column: str, where: str) -> Any:
        """As the section of examples reads it."""
        return self.task.section_of_examples.second_text(row, column, where)

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[Answer]:
        """One answer a text; see the base class."""
        section = self.task.section_of_examples
        return self.of_examples(run, (section.unlabelled(*row) for row in rows), drawing)

    def of_examples(
        self, run: Path, examples: Iterable[Mapping[str, Any]], drawing: Drawing
    ) -> Iterator[Answer]:
        """Answers for examples, which are read and answered batch by batch."""
        task = self.task.drawing(drawing.num_samples, drawing.seed)
        predictor = Predictor(task, task.network(run))
        closed_form = drawing.uncertainty == "moments"
        for number, rows in enumerate(in_batches(examples, task.recipe.prediction.batch_size)):
            (batch,) = predictor.completed(rows)
            yield from task.answer(predictor.drawn(batch, number, closed_form=closed_form), batch)

    def answers(self, answers: Sequence[Answer]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        return self.task.answer_sheet(answers), list(answers)

    def columns(self, answer: Answer) -> dict[str, Any]:
        """What was predicted, by name, without the inputs."""
        return {
            name: rounded(value) if isinstance(value, float) else value
            for name, value in answer.items()
            if name not in self.task.inputs
        }


def rounded(value: float) -> float:
    """A number with 6 decimals, and with at least 6 significant digits.

    Example:
        >>> rounded(0.123456789), rounded(1.23456789e-7)
        (0.123457, 1.23457e-07)
    """
    if not value or not math.isfinite(value):
        return value
    return round(value, DIGITS - min(0, 1 + math.floor(math.log10(abs(value)))))


class Entropies(Record):
    """What is stored of any answer that has entropies."""

    entropy: float
    mutual_information: float


class HeadDeciding(Deciding):
    """Decisions by the validation examples and those that are measured.

    A head subclasses it beside its task and says how probable it is that an answer is wrong (:meth:`read`), whether it
    is (:meth:`wrong`, :meth:`truth`), and what both need of it (``record``).
    """

    task: HeadTask
    record: ClassVar[type[Record]]

    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """The validation examples and those that are measured; see the base class."""
        task, section = self.task, self.task.section_of_examples
        trained = {section.identity(row) for split in ("train", "validation") for row in task.examples[split]}
        title, source = f"{Path(section.train).name} (validation)", str(section.validation or section.train)
        data = {"validation": self._held_out(task.examples["validation"], title, "validation", source)}
        for key in task.measured_splits:
            described = task.described(key)
            data[key] = self._held_out(task.examples[key], described.title, described.role, described.source)
        if file is not None:
            data["test"] = self._held_out(section.read_examples(file, "test"), file, "in_domain", file)
        test = data["test"]
        shared = [
            row for row, example in enumerate(test.examples or ()) if section.identity(example) in trained
        ]
        return {**data, "test": replace(test, seen=shared)}

    def predict(self, run: Path, inputs: HeldOut, drawing: Drawing) -> Iterator[Answer]:
        """Answers for held-out examples; see the base class."""
        return self.task.answering.of_examples(run, self.examples(inputs), drawing)

    def examples(self, inputs: HeldOut) -> Examples:
        """The examples of inputs."""
        pairs: Sequence[str | None] = inputs.pairs or [None] * len(inputs.texts)
        return inputs.examples or list(map(self.task.section_of_examples.unlabelled, inputs.texts, pairs))

    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """None but of classes; see the base class."""
        raise RunError(
            f"{run}: --novelty: expected a run that gives one class to each input, got one of {self.task.section}"
        )

    def truth(self, example: Mapping[str, Any]) -> Any:
        """The true answer of an example."""
        return example["target"]

    def _held_out(self, examples: Examples, title: str, role: str, source: str) -> HeldOut:
        labelled, identity = role != "out_of_domain", self.task.section_of_examples.identity
        return HeldOut(
            title=title,
            role=role,
            source=source,
            texts=[str(row.get("name") or row.get("text") or identity(row)) for row in examples],
            pairs=[str(row["pair"]) for row in examples] if "pair" in examples[0] else None,
            labels=[self.truth(row) for row in examples] if labelled else None,
            examples=examples,
            record=self.record,
            about=None if self.task.cluster is None else self.task.cluster[1],
        )
