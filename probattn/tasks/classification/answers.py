"""Texts as examples, and what is predicted of them for terminals, programs and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from probattn.data import TextDataset
from probattn.metrics.functional import mutual_information
from probattn.report import Example, ModelKey, PredictedData, describe
from probattn.tasks.answering import DIGITS
from probattn.tasks.classification.looks import GIVEN
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.recipe import Examples


def examples_of(data: TextDataset) -> list[Mapping[str, Any]]:
    """Texts of a data set with their second texts, classes and source, where they have some."""
    columns: dict[str, Sequence[Any] | None] = {"text": data.texts, "pair": data.pairs, "target": data.labels}
    named = {name: values for name, values in columns.items() if values is not None}
    return [
        {**dict(zip(named, row, strict=True)), "source": data.source}
        for row in zip(*named.values(), strict=True)
    ]


def dataset_of(examples: Examples, names: Sequence[str]) -> TextDataset:
    """The data set of examples of one source, whose classes, if any, have these names."""
    first = examples[0]
    texts, pairs, labels = (
        tuple(example[name] for example in examples) if name in first else None
        for name in ("text", "pair", "target")
    )
    assert texts is not None
    return TextDataset(texts, labels, tuple(names), first.get("source", GIVEN), pairs=pairs)


def answers_from(
    predicted: PredictedData, model: ModelKey, data: TextDataset, classes: Sequence[str]
) -> Iterator[tuple[Example, Answer]]:
    """Predictions of one model, text by text, for reports and programs; mutual information in nats, 0 without draws."""
    predictions = predicted.models[model]
    information = (
        torch.zeros(len(data)) if predictions.draws is None else mutual_information(predictions.draws)
    )
    item = PredictedData(predicted.data, predicted.labels, {model: predictions})
    examples = describe(item, range(len(data)), data.texts, classes, data.pairs)
    for example, row, nats in zip(
        examples, predictions.probabilities.tolist(), information.tolist(), strict=True
    ):
        answer = {
            "text": example.text,
            **({} if example.pair is None else {"pair": example.pair}),
            "label": example.predicted,
            "probability": example.probability,
            "spread": example.spread,
            "entropy": example.entropy,
            "mutual_information": nats,
            "probabilities": dict(zip(classes, row, strict=True)),
        }
        yield example.model_copy(update={"data": None, "index": None}), answer


def columns_of(answer: Answer) -> dict[str, Any]:
    """Label, probabilities and measures of uncertainty, for a file."""
    shares = {"probability": answer["probability"]}
    shares |= {f"p_{name}": value for name, value in answer["probabilities"].items()}
    shares |= {name: answer[name] for name in ("entropy", "mutual_information", "spread")}
    return {"label": answer["label"], **{name: round(value, DIGITS) for name, value in shares.items()}}
