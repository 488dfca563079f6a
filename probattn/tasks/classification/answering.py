"""Labels of texts that a user names, and decisions which labels can stand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probattn.data import DataWarning, PadCollate, TextDataset
from probattn.data.task import role_of
from probattn.inference import Explanation
from probattn.inference.laplace import FITTED
from probattn.metrics.functional import mutual_information
from probattn.report import DataSet, Example, ModelKey, PredictedData, describe
from probattn.tasks.answering import DIGITS, Drawing
from probattn.tasks.classification.explaining import explained
from probattn.tasks.classification.looks import GIVEN
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.answering import HeadAnswering
from probattn.tasks.fine_tuning.classes import ClassesDeciding
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.predictor import TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.fine_tuning.task import ROLES
from probattn.tasks.held_out import HeldOut
from probattn.tasks.measured import predictions
from probattn.tasks.networks import in_batches

if TYPE_CHECKING:
    from probattn.tasks.classification.task import Classification


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
            with warnings.catch_warnings(action="ignore", category=DataWarning):  # one at the end counts all
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
        shares = {"probability": answer["probability"]}
        shares |= {f"p_{name}": value for name, value in answer["probabilities"].items()}
        shares |= {name: answer[name] for name in ("entropy", "mutual_information", "spread")}
        return {"label": answer["label"], **{name: round(value, DIGITS) for name, value in shares.items()}}


class TextDeciding(ClassesDeciding):
    """Decisions by the validation texts and those that are measured."""

    task: Classification

    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """The validation texts and those that are measured; see the base class."""
        splits = self.task.texts
        other = {} if file is None else {"test": self._read(file)}
        data = {"validation": splits.validation, **self.task.measured(), **other}
        names, trained = splits.label_names, splits.train.keys() | splits.validation.keys()
        return {
            key: HeldOut(
                self.task.title_of(texts.source),
                ROLES.get(role_of(key), key),
                texts.source,
                texts.texts,
                texts.pairs,
                None if texts.labels is None else [names[label] for label in texts.labels],
                seen=texts.places_in(trained) if key == "test" else (),
            )
            for key, texts in data.items()
        }

    def _read(self, file: str) -> TextDataset:
        """Texts of a file or of a data set that has a name, with the columns of the training data."""
        train = self.task.recipe.data.train.build()
        texts = replace(train, source=file, split=None).load("test", self.task.texts.label_names)
        if texts.labels is None:
            raise RunError(f"{file}: expected texts with their classes, got none")
        return texts

    def training(self, network: TrainedHead) -> Examples:
        """A fixed choice of the training texts; see the base class."""
        self.task.check_classes(network)
        return examples_of(self.task.texts.train.take(FITTED))

    def reasons(self, run: Path) -> Callable[[Mapping[str, Any]], Explanation | None]:
        """Words of one text or of a pair; see the base class."""
        network = self.task.network(run)

        def words(answer: Mapping[str, Any]) -> Explanation | None:
            pair = answer.get("pair")
            texts = [answer["text"]] if pair is None else [answer["text"], pair]
            batch = self.task.single(network, texts, GIVEN)
            return explained(network, batch, texts, network.names, answer["label"])

        return words
