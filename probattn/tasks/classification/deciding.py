"""Held-out texts, and the words that make a label unsure, by which it is decided which labels can stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probattn.data import TextDataset
from probattn.data.task import role_of
from probattn.inference import Explanation
from probattn.inference.laplace import FITTED
from probattn.tasks.classification.answers import examples_of
from probattn.tasks.classification.explaining import explained
from probattn.tasks.classification.looks import GIVEN
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.classes import ClassesDeciding
from probattn.tasks.fine_tuning.predictor import TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.fine_tuning.task import ROLES
from probattn.tasks.held_out import HeldOut

if TYPE_CHECKING:
    from probattn.tasks.classification.task import Classification


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
