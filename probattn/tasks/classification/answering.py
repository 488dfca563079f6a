"""Labels of texts that a user names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from probattn.data import DataWarning, TextDataset, TokenizedTexts
from probattn.report import DataSet, PredictedData, Sheet, predictions_table
from probattn.tasks.answering import Answering, Drawing
from probattn.tasks.classification.answers import Answer, answers_from, columns_of, object_of
from probattn.tasks.classification.looks import GIVEN
from probattn.tasks.classification.networks import TrainedClassifier, class_names
from probattn.tasks.networks import in_batches, predictions

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.classification.task import Classification


class TextAnswering(Answering):
    """Labels of texts with their probability and its spread over the posterior."""

    task: Classification

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """The columns of the training texts."""
        train = self.task.recipe.data.train
        return train.text, (train.text_pair or "text_pair") if self.task.is_paired else None

    @property
    def quotes(self) -> bool:
        """As in the training data."""
        return self.task.recipe.data.train.quotes

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[Answer]:
        """One answer a text; see the base class."""
        return answers_of(self.task, self.task.network(run), rows, drawing)

    def answers(self, answers: Sequence[Answer]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        return predictions_table([answer.example for answer in answers]), list(map(object_of, answers))

    def columns(self, answer: Answer) -> dict[str, Any]:
        """Label, probabilities and measures of uncertainty."""
        return columns_of(answer)


def answers_of(
    task: Classification,
    network: TrainedClassifier,
    rows: Iterable[tuple[str, str | None]],
    drawing: Drawing,
) -> Iterator[Answer]:
    """Answers of a network to texts and second texts, batch by batch."""
    size = truncated = longest = 0
    limit: int | None = None
    for number, batch in enumerate(in_batches(rows, drawing.batch_size)):
        firsts, seconds = zip(*batch, strict=True)
        data = TextDataset(firsts, None, (), GIVEN, pairs=None if seconds[0] is None else seconds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # one at the end counts all
            batches = task.batches(network, data)
        tokens = cast(TokenizedTexts, batches.dataset)
        size, truncated, limit = size + len(data), truncated + tokens.truncated, tokens.max_length
        longest = max(longest, tokens.longest)
        described = DataSet(key="given", title="Given", role="in_domain", size=len(data), labelled=False)
        models = predictions(network, batches, drawing, dropout=False, first_batch=number)
        item = PredictedData(described, None, {network.key: models[network.key]})
        yield from answers_from(item, network.key, data, class_names(network))
    if truncated:
        warnings.warn(
            f"{GIVEN}: {truncated:,} of {size:,} are longer than {limit} tokens (the longest has {longest:,}): "
            "they are truncated",
            DataWarning,
            stacklevel=2,
        )
