"""Answers of pretrained networks with a head to inputs that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probattn.report import Sheet
from probattn.tasks.answering import DIGITS, Answering, Drawing
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.predictor import Predictor
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
            name: round(value, DIGITS) if isinstance(value, float) else value
            for name, value in answer.items()
            if name not in self.task.inputs
        }
