"""Labels of texts that a user names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probattn.data import DataWarning, PadCollate
from probattn.report import DataSet, Example, PredictedData
from probattn.tasks.answering import Drawing
from probattn.tasks.classification.answers import answers_from, columns_of, dataset_of
from probattn.tasks.classification.looks import GIVEN
from probattn.tasks.fine_tuning.answering import HeadAnswering
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.predictor import TrainedHead
from probattn.tasks.measured import predictions
from probattn.tasks.networks import in_batches

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.classification.task import Classification


class TextAnswering(HeadAnswering):
    """Labels of texts with their probability and its spread over the posterior."""

    task: Classification

    def of_examples(
        self, run: Path, examples: Iterable[Mapping[str, Any]], drawing: Drawing
    ) -> Iterator[Answer]:
        """Answers for examples; see the base class."""
        return (answer for _, answer in self.described(self.task.network(run), examples, drawing))

    def described(
        self, network: TrainedHead, examples: Iterable[Mapping[str, Any]], drawing: Drawing
    ) -> Iterator[tuple[Example, Answer]]:
        """Answers of a network with their records for the report, batch by batch; one warning counts long texts."""
        task, names = self.task, network.names
        collate = PadCollate(network.codec)
        size = truncated = longest = 0
        limit: int | None = None
        for number, rows in enumerate(in_batches(examples, drawing.batch_size)):
            data = dataset_of(rows, ())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # one at the end counts all
                tokens = task.tokenized(network.codec, data, network.net.config)
            size, truncated, limit = size + len(data), truncated + tokens.truncated, tokens.max_length
            longest = max(longest, tokens.longest)
            batch = collate([tokens[row] for row in range(len(data))])
            described = DataSet(key="given", title="Given", role="in_domain", size=len(data), labelled=False)
            models = predictions(network, [batch], drawing, dropout=False, first_batch=number)
            item = PredictedData(described, None, {network.key: models[network.key]})
            yield from answers_from(item, network.key, data, names)
        if truncated:
            warnings.warn(
                f"{GIVEN}: {truncated:,} of {size:,} are longer than {limit} tokens (the longest has {longest:,}): "
                "they are truncated",
                DataWarning,
                stacklevel=2,
            )

    def columns(self, answer: Answer) -> dict[str, Any]:
        """Label, probabilities and measures of uncertainty."""
        return columns_of(answer)
