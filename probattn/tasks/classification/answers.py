"""Predictions for single texts, for terminals, programs and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from probattn.data import TextDataset
from probattn.metrics.functional import mutual_information
from probattn.report import Example, ModelKey, PredictedData, describe
from probattn.tasks.answering import DIGITS


@dataclass(frozen=True)
class Answer:
    """The prediction for a text.

    Attributes:
        example: its class with the highest mean probability, and how certain that is.
        probabilities: mean probability of each class by name.
        mutual_information: between the class and the posterior draws, nats; 0 without draws.
    """

    example: Example
    probabilities: Mapping[str, float]
    mutual_information: float


def answers_from(
    predicted: PredictedData, model: ModelKey, data: TextDataset, classes: Sequence[str]
) -> Iterator[Answer]:
    """The predictions of one model for the texts of a data set, one by one."""
    predictions = predicted.models[model]
    information = (
        torch.zeros(len(data)) if predictions.draws is None else mutual_information(predictions.draws)
    )
    item = PredictedData(predicted.data, predicted.labels, {model: predictions})
    examples = describe(item, range(len(data)), data.texts, classes, data.pairs)
    for example, row, bits in zip(
        examples, predictions.probabilities.tolist(), information.tolist(), strict=True
    ):
        yield Answer(
            example.model_copy(update={"data": None, "index": None}),
            dict(zip(classes, row, strict=True)),
            bits,
        )


def object_of(answer: Answer) -> dict[str, Any]:
    """A prediction for programs."""
    example = answer.example
    texts = {"text": example.text} if example.pair is None else {"text": example.text, "pair": example.pair}
    return {
        **texts,
        "label": example.predicted,
        "probability": example.probability,
        "spread": example.spread,
        "entropy": example.entropy,
        "mutual_information": answer.mutual_information,
        "probabilities": answer.probabilities,
    }


def columns_of(answer: Answer) -> dict[str, Any]:
    """Label, probabilities and measures of uncertainty."""
    example = answer.example
    return {
        "label": example.predicted,
        "probability": round(example.probability, DIGITS),
        **{f"p_{name}": round(value, DIGITS) for name, value in answer.probabilities.items()},
        "entropy": round(example.entropy, DIGITS),
        "mutual_information": round(answer.mutual_information, DIGITS),
        "spread": round(example.spread, DIGITS),
    }


def prediction_rows(
    sets: Iterable[tuple[str, Sequence[Answer], TextDataset]], classes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Rows of :func:`probattn.tasks.answering.write_predictions`.

    ``sets`` are the key of a data set, its answers and its texts. A row has that key, the text (and the second one),
    the true class where it is known, and the columns of :func:`columns_of`.
    """
    for key, answers, data in sets:
        labels = None if data.labels is None else [classes[label] for label in data.labels]
        for index, answer in enumerate(answers):
            pair = {} if data.pairs is None else {"pair": data.pairs[index]}
            truth = {"true": "" if labels is None else labels[index]}
            yield {"data": key, "text": data.texts[index]} | pair | truth | columns_of(answer)
