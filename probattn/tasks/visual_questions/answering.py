"""Answers to lines that a user writes: an image and a question about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from probattn.inference import posterior_moments, posterior_predict
from probattn.inference.moments import Moments
from probattn.inference.posterior import Posterior
from probattn.report import Sheet
from probattn.tasks.answering import Answering, Drawing
from probattn.tasks.networks import in_batches
from probattn.tasks.visual_questions.questions import answer_sheet, answers_of, object_of, questions_of

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.visual_questions.task import VisualQuestionTask


class VisualAnswering(Answering):
    """Answers to lines with the path of an image, or its number among the test images, a tab and a question."""

    task: VisualQuestionTask

    reads = "lines with an image and a question"

    def check(self, run: Path) -> Callable[[str], object]:
        """Whether a line names an image that is there and asks something."""
        files = self.task.recipe.visual_questions.images("test")
        return lambda line: questions_of([line], files)

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[dict[str, Any]]:
        """One answer a line; see the base class."""
        task, network = self.task, self.task.network(run)
        prediction, files = task.recipe.prediction, task.recipe.visual_questions.images("test")
        latent, names = network.key == "bayesian_mean", answers_of(network)
        for number, batch_rows in enumerate(in_batches(rows, prediction.batch_size)):
            lines = [line for line, _ in batch_rows]
            batch = next(task.batches(network, task.rows(network, questions_of(lines, files))))
            seed = (drawing.seed, number)
            answers: Moments | Posterior
            if latent and drawing.uncertainty == "moments":
                draws = max(drawing.num_samples, 2)
                answers = posterior_moments(network.program, batch, num_samples=draws, seed=seed)
            else:
                draws, chunk = drawing.num_samples if latent else 1, prediction.chunk_size
                answers = posterior_predict(network.program, batch, draws, seed=seed, chunk_size=chunk)
            for line, mean, spread in zip(lines, answers.mean.cpu(), answers.std.cpu(), strict=True):
                yield object_of(line, mean, spread, names)

    def answers(self, answers: Sequence[dict[str, Any]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        return answer_sheet(answers), list(answers)

    def columns(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, its probability and its spread."""
        return {name: answer[name] for name in ("answer", "probability", "spread")}
