"""Texts about graphs that a user writes down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probattn.data import GraphTexts
from probattn.report import Sheet
from probattn.tasks.answering import Answering, Drawing
from probattn.tasks.graph_text.results import row_to_write
from probattn.tasks.networks import check_finished, in_batches

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.graph_text.task import GraphTextTask


class GraphTextAnswering(Answering):
    """Texts about graphs, each given as a line of AGENDA's files up to its relations, without draws."""

    task: GraphTextTask

    reads = "single lines"
    undrawn = "texts are written at the posterior expectation, without draws"
    no_moments = "texts come without any"

    def check(self, run: Path) -> Callable[[str], object]:
        """Whether a line is one to write about."""
        return partial(row_to_write, vocabulary=self.task.vocabulary(check_finished(run)))

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[dict[str, Any]]:
        """One text a line; see the base class."""
        network = self.task.network(run)
        for batch in in_batches((line for line, _ in rows), self.task.recipe.search.batch_size):
            graphs = tuple(row_to_write(line, network.codec) for line in batch)
            texts = GraphTexts(graphs, network.codec.relations, "predict")
            for line, graph, tokens in zip(batch, graphs, self.task.written(network, texts), strict=True):
                copied = sorted({token for token in tokens if isinstance(token, int)})
                yield {
                    "text": line,
                    "written": graph.named(tokens),
                    "copied": [graph.entities[number] for number in copied],
                }

    def answers(self, answers: Sequence[dict[str, Any]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A text a line, and the same for programs."""
        return "\n".join(answer["written"] for answer in answers), list(answers)

    def columns(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The written text."""
        return {"written": answer["written"]}
