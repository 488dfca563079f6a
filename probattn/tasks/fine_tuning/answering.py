"""Answers of pretrained networks with a head to inputs that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probattn.report import Sheet
from probattn.tasks.answering import DIGITS, Answering, Drawing
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.measured import posterior_of
from probattn.tasks.networks import in_batches

if TYPE_CHECKING:
    from probattn.tasks.fine_tuning.task import HeadTask


class HeadAnswering(Answering):
    """Answers of a head, batch by batch."""

    task: HeadTask

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Those of the task."""
        return self.task.columns_read

    @property
    def quotes(self) -> bool:
        """As in the training data."""
        return bool(self.task.section_of_examples.quotes)

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[Answer]:
        """One answer a text; see the base class."""
        return self.of_examples(run, (self.task.given(*row) for row in rows), drawing)

    def of_examples(
        self, run: Path, examples: Iterable[Mapping[str, Any]], drawing: Drawing
    ) -> Iterator[Answer]:
        """Answers for examples, which are read and answered batch by batch."""
        task = self.task.drawing(drawing.num_samples, drawing.seed)
        network = task.network(run)
        for number, rows in enumerate(in_batches(examples, task.recipe.prediction.batch_size)):
            encoded = task.encode(network.codec, rows)
            batch = task.completed(network, next(task.batches(network, encoded, rows)))
            if drawing.uncertainty == "moments" and network.key == "bayesian_mean":
                posterior = task.closed_form(network, batch.tensors, number)
            else:
                posterior = posterior_of(network, *task.read(network, batch.tensors), number)
            yield from task.answer(posterior, batch)

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
