"""Translations of sentences that a user writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from probattn.models.translation import translate
from probattn.report import Sheet
from probattn.tasks.answering import Answering, Drawing
from probattn.tasks.networks import in_batches

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.translation.task import Translation


UNDRAWN = "translations are those at the posterior expectation, without draws"


class TranslationAnswering(Answering):
    """Translations; draws play no part in them."""

    task: Translation

    undrawn = UNDRAWN
    no_moments = "translations come without any"

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[dict[str, str]]:
        """One translation a sentence; see the base class."""
        network, search = self.task.network(run), self.task.recipe.search.build()
        for batch in in_batches((text for text, _ in rows), search.batch_size):
            translations = translate(network.program, batch, network.codec, search)
            for text, translation in zip(batch, translations, strict=True):
                yield {"text": text, "translation": translation}

    def answers(self, answers: Sequence[dict[str, str]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A translation a line, and the same for programs."""
        return "\n".join(answer["translation"] for answer in answers), list(answers)

    def columns(self, answer: dict[str, str]) -> dict[str, Any]:
        """The translation."""
        return {"translation": answer["translation"]}
