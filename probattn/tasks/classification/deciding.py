"""Held-out texts, features and reasons, by which it is decided which labels can stand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probattn.data import BUILT_IN, DataWarning, TextDataset
from probattn.data.task import role_of
from probattn.inference.last_layer import FITTED, Features
from probattn.report import Example, Role
from probattn.report.measures import capital
from probattn.tasks.answering import Deciding, Drawing
from probattn.tasks.classification.answers import Answer
from probattn.tasks.classification.attribution import leading_words
from probattn.tasks.classification.looks import GIVEN
from probattn.tasks.errors import RunError
from probattn.tasks.held_out import HeldOut

if TYPE_CHECKING:
    from probattn.tasks.classification.task import Classification

REPORT_ROLES: dict[str, Role] = {"test": "in_domain", "shifted": "shifted", "out_of_domain": "out_of_domain"}


class TextDeciding(Deciding):
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
                title_of(texts.source),
                REPORT_ROLES.get(role_of(key), key),
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

    def predict(self, run: Path, inputs: HeldOut, drawing: Drawing) -> Iterator[Answer]:
        """As for texts of users."""
        seconds: Sequence[str | None] = inputs.pairs or [None] * len(inputs.texts)
        return self.task.answering.answered(run, zip(inputs.texts, seconds, strict=True), drawing)

    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """What reads the features of texts; see the base class."""
        network = self.task.network(run)

        def features(inputs: HeldOut | None) -> Features:
            if inputs is None:
                self.task.check_classes(network)
            texts = self.task.texts.train.take(FITTED) if inputs is None else inputs.as_texts()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # what predicts them says what is truncated
                return self.task.features(network, texts)

        return features

    def reasons(self, run: Path) -> Callable[[Mapping[str, Any]], Sequence[str]] | None:
        """The words with the largest shares of the variance of latent attention; see the base class."""
        network = self.task.network(run)
        if network.key != "bayesian_mean":
            return None

        def words(answer: Mapping[str, Any]) -> Sequence[str]:
            example = Example(
                text=answer["text"],
                pair=answer.get("pair"),
                predicted=answer["label"],
                probability=answer["probability"],
                spread=answer["spread"],
                entropy=answer["entropy"],
            )
            return leading_words(network, network.moved(self.task.single(network, example, GIVEN)), example)

        return words


def title_of(source: str) -> str:
    """A data set's name for people: ``rotten_tomatoes (test)`` is "Rotten tomatoes (test)"; files keep their names."""
    if source.partition(" (")[0] not in BUILT_IN:
        return source if source.startswith("hub:") else Path(source).name
    return capital(source.replace("_", " "))
