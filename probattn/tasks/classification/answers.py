"""Predictions for single texts, for terminals, programs and files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from probattn.data import TextDataset
from probattn.files.durable import write_atomically
from probattn.files.spreadsheets import escaped
from probattn.metrics.functional import mutual_information
from probattn.report import Example, ModelKey, PredictedData, describe
from probattn.tasks.answering import DIGITS

PREDICTIONS = "predictions.csv"
"""The predictions of an evaluation, in the folder of its run."""


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


def write_predictions(
    folder: Path, sets: Iterable[tuple[str, Sequence[Answer], TextDataset]], classes: Sequence[str]
) -> None:
    """Writes the predictions of a run's own network for all texts that were measured.

    ``sets`` are the key of a data set, its answers and its texts. A row has that key, the text (and the second one),
    the true class where it is known, and the columns of :func:`columns_of`; names of classes that a spreadsheet would
    take for a formula are escaped.
    """
    rows: list[dict[str, Any]] = []
    for key, answers, data in sets:
        labels = None if data.labels is None else [classes[label] for label in data.labels]
        for index, answer in enumerate(answers):
            pair = {} if data.pairs is None else {"pair": data.pairs[index]}
            truth = {"true": "" if labels is None else escaped(labels[index])}
            columns = columns_of(answer)
            columns["label"] = escaped(columns["label"])
            rows.append({"data": key, "text": data.texts[index]} | pair | truth | columns)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / PREDICTIONS, file.getvalue().encode(errors="replace"))
