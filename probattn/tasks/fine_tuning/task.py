"""Tasks of pretrained networks with a head: predictions, their measures, and the report."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from probattn.checks import shortened
from probattn.inference.expansion import Method, expansion_pays, posterior_moments
from probattn.inference.posterior import Posterior
from probattn.models.program import HeadProgram
from probattn.report import (
    AttributionExample,
    DataSet,
    Group,
    Listing,
    ModelKey,
    Results,
    RunDescription,
    Sheet,
)
from probattn.report.bootstrap import Columns
from probattn.report.measures import within
from probattn.tasks.fine_tuning.answering import HeadAnswering
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.networks import HeadNetworks, TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.measured import expected_of, joined, posteriors_of
from probattn.tasks.networks import in_batches
from probattn.tasks.topics import TopicData

ATTRIBUTED = 4
"""Most uncertain examples whose variance is attributed to words."""
ROOM = 160
"""Characters of a text in a table."""


class HeadTask(HeadNetworks):
    """A pretrained network with a head, fine-tuned and measured by the measures of its task.

    Attributes:
        headings: of the table of uncertain examples, by the key of an answer.
        inputs: the keys of an answer that are what was asked.
        ranked_by: the key of an answer that says how uncertain it is.
        calibrates: whether held-out examples are predicted too, see :meth:`calibrated`.
        cluster: the key of what several examples may share, which a bootstrap then draws together, and its name in the
            plural; None where examples are independent.
    """

    headings: ClassVar[Mapping[str, str]]
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    ranked_by: ClassVar[str] = "entropy"
    calibrates: ClassVar[bool] = False
    cluster: ClassVar[tuple[str, str] | None] = None

    @abstractmethod
    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """What the measures are computed from, one row an example."""

    @abstractmethod
    def figures(self, columns: Columns) -> dict[str, float | None]:
        """The measures of some examples, and further figures that the records keep."""

    @abstractmethod
    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """What is predicted of each example; :attr:`ranked_by` is among it."""

    @abstractmethod
    def given(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """An example without label, as a user writes it; ``RunError`` where that cannot be."""

    @property
    def answering(self) -> HeadAnswering:
        """Answers of the head."""
        return HeadAnswering(self)

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Usual columns of the texts, and of the second texts where the task is about pairs."""
        return "text", None

    def calibrated(self, columns: Columns, held_out: Columns) -> Columns:
        """Columns with what the held-out examples say about them."""
        return columns

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Further tables of the report, from the columns of the test examples by model."""
        return ()

    def batches(
        self, network: TrainedHead, encoded: Sequence[Encoded], examples: Examples
    ) -> Iterator[Batch]:
        """Batches of encoded examples, in order."""
        collate = self.collate(network.codec)
        for places in in_batches(range(len(examples)), self.recipe.prediction.batch_size):
            parts = [encoded[place] for place in places]
            rows = [row for item in parts for row in item.rows]
            yield Batch([examples[place] for place in places], parts, collate(rows), network.net.config)

    def completed(self, network: TrainedHead, batch: Batch) -> Batch:
        """A batch with what the network itself adds before it is measured, such as a text that it generates."""
        return batch

    def reading(
        self, program: HeadProgram, tensors: Mapping[str, Tensor]
    ) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """What is predicted of a batch, as a function of its inputs: the program's prediction, or a part of it."""
        return program

    def posteriors(
        self, network: TrainedHead, tensors: Mapping[str, Tensor], number: int
    ) -> dict[ModelKey, Posterior]:
        """Predictions of a batch by model: of latent attention of draws, at its expectation, and in closed form."""
        found = posteriors_of(network, *self.read(network, tensors), number)
        drawn = found.get("bayesian_mean")
        if drawn is not None and expansion_pays(
            drawn.logits, self.recipe.prediction.num_samples, network.program.link
        ):
            found["bayesian_moments"] = self.closed_form(network, tensors, number, "expansion")
        return found

    def read(self, network: TrainedHead, tensors: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor], Any]:
        """What reads a batch, its inputs on the network's device, and how to predict."""
        program = network.program
        inputs = {name: value.to(network.device) for name, value in program.inputs(tensors).items()}
        return self.reading(program, tensors), inputs, self.recipe.prediction

    def closed_form(
        self, network: TrainedHead, tensors: Mapping[str, Tensor], number: int, method: Method = "auto"
    ) -> Posterior:
        """Predictions of a batch in closed form: points with its mean and covariance instead of draws."""
        read, inputs, prediction = self.read(network, tensors)
        moments = posterior_moments(
            read,
            inputs,
            method=method,
            num_samples=max(prediction.num_samples, 2),
            seed=(prediction.seed, number),
        )
        points = moments.draws(max(prediction.num_samples, moments.classes.shape[-1] + 1))
        return replace(points, logits=points.logits.cpu())

    def measure(self, run: RunDescription, networks: Sequence[TrainedHead]) -> Results:
        """Predicts the test examples with every network and measures the predictions."""
        last = networks[-1]
        table: dict[tuple[str, ModelKey], Columns] = {}
        answers: list[Answer] = []
        for network in networks:
            held = self._predicted(network, "validation")[0] if self.calibrates else {}
            for key in self.measured_splits:
                found, given = self._predicted(network, key)
                answers = given if key == "test" else answers
                table |= {
                    (key, model): self.calibrated(columns, held[model]) if held else columns
                    for model, columns in found.items()
                    if not held or model in held
                }
        home = {model: columns for (key, model), columns in table.items() if key == "test"}
        return self.results_of(
            run,
            networks,
            table,
            self.figures,
            seed=self.recipe.prediction.seed,
            clusters={key: self._clusters(key) for key in self.measured_splits} if self.cluster else None,
            data=tuple(self.described(key) for key in self.measured_splits),
            listings=(*self.listings(home), *self._uncertain(answers)),
            attribution=tuple(self._attributed(last, answers)),
        )

    @property
    def measured_splits(self) -> list[str]:
        """The parts of the data that are measured."""
        return [key for key in ("test", "shifted") if key in self.examples]

    def _clusters(self, key: str) -> list[str]:
        """What each example of a part shares with others; nothing where examples are independent."""
        return [] if self.cluster is None else [example[self.cluster[0]] for example in self.examples[key]]

    def described(self, key: str) -> DataSet:
        """A part of the data that is measured, as the report names it."""
        section = self.section_of_examples
        source = section.shifted if key == "shifted" else section.test or section.train
        named = section.shifted if key == "shifted" else section.train
        return DataSet(
            key=key,
            title=shortened(f"{Path(named).name} (test)", 60),
            role="shifted" if key == "shifted" else "in_domain",
            size=len(self.examples[key]),
            labelled=True,
            source=source,
            unit=self.unit,
            cluster=self.cluster[1] if self.cluster else "",
            clusters=len(set(self._clusters(key))) or None,
        )

    def _predicted(self, network: TrainedHead, split: str) -> tuple[dict[ModelKey, Columns], list[Answer]]:
        """Columns by model, and the answers of the network itself, in the order of the examples."""
        examples = self.examples[split]
        encoded = self.encode(network.codec, examples)
        order = sorted(range(len(examples)), key=lambda place: _length(encoded[place]))  # little padding
        plain = self.batches(network, [encoded[row] for row in order], [examples[row] for row in order])
        batches = (self.completed(network, batch) for batch in plain)
        parts: dict[ModelKey, list[Columns]] = {}
        answers: list[Answer] = []
        total = -(-len(examples) // self.recipe.prediction.batch_size)
        for number, batch in enumerate(network.tracked(batches, f"predictions ({split})", total)):
            for key, posterior in self.posteriors(network, batch.tensors, number).items():
                parts.setdefault(key, []).append(self.record(posterior, batch))
                if key == network.key:
                    answers += self.answer(posterior, batch)
        columns: dict[ModelKey, Columns] = {
            key: joined(found, order)
            for key, found in parts.items()
            if len(found) == max(map(len, parts.values()))  # the closed form, where it pays for every batch
        }
        return columns, [answers[place] for place in torch.tensor(order).argsort().tolist()]

    def attributed(self, own: TrainedHead, example: Mapping[str, Any]) -> AttributionExample | None:
        """Where the variance of an example's answer comes from; None where the task has one number a word, or none."""
        return None

    def _attributed(self, own: TrainedHead, answers: Sequence[Answer]) -> Iterator[AttributionExample]:
        if own.key == "bayesian_mean":
            shown = self._ranked(answers)[: min(ATTRIBUTED, self.recipe.report.uncertain)]
            found = (self.attributed(own, self.examples["test"][place]) for place in shown)
            yield from (item for item in found if item is not None)

    def _ranked(self, answers: Sequence[Answer]) -> list[int]:
        """Places of the answers, the most uncertain first."""
        return sorted(range(len(answers)), key=lambda place: -answers[place][self.ranked_by])

    def _uncertain(self, answers: Sequence[Answer]) -> Iterator[Listing]:
        examples, key = self.examples["test"], self.ranked_by
        shown = self._ranked(answers)[: self.recipe.report.uncertain]
        if shown:
            truths = [self.truth(examples[place]) for place in shown]
            sheet = self.sheet(
                [
                    answers[place] | ({} if truth is None else {"truth": truth})
                    for place, truth in zip(shown, truths, strict=True)
                ]
            )
            yield Listing(
                title=f"The most uncertain {self.unit}",
                headings=sheet.headings,
                rows=tuple(tuple(shortened(cell, ROOM) for cell in row) for row in sheet.groups[0].rows),
                words=sheet.words,
                about=f"In the order of: {self.headings[key]}.",
            )

    @classmethod
    def sheet(cls, answers: Sequence[Answer]) -> Sheet:
        """Answers as a table: those of :attr:`headings` that they have, words before numbers."""
        keys = [key for key in cls.headings if answers and key in answers[0]]
        numbers = [key for key in keys if isinstance(answers[0][key], float)]
        keys = [key for key in keys if key not in numbers] + numbers
        rows = tuple(
            tuple(f"{answer[key]:.3f}" if key in numbers else str(answer[key]) for key in keys)
            for answer in answers
        )
        titles = tuple(cls.headings[key] for key in keys)
        return Sheet(titles, (Group("", rows),), words=len(keys) - len(numbers))

    @classmethod
    def answer_sheet(cls, answers: Sequence[Answer]) -> Sheet:
        """Answers to inputs of users, for a terminal."""
        return cls.sheet(answers)

    @abstractmethod
    def truth(self, example: Mapping[str, Any]) -> str | None:
        """The label of an example in words, as answers show theirs; None for none."""

    def topic_data(self, networks: Sequence[TrainedHead]) -> TopicData:
        """Test examples as the topics of the report read them."""
        test, head_measure = self.examples["test"], self.head_measure()

        def batches(network: TrainedHead, examples: Examples) -> Iterator[Mapping[str, Tensor]]:
            encoded = self.encode(network.codec, examples)
            return (
                network.program.inputs(batch.tensors) for batch in self.batches(network, encoded, examples)
            )

        return TopicData(
            take=lambda number: test[:number],
            batches=batches,
            start=self._start,
            report=self.recipe.report,
            prediction=self.recipe.prediction,
            accuracy=None if head_measure is None else self._head_accuracy,
            measure="" if head_measure is None else within(self.measures[head_measure].title),
        )

    def _start(self) -> HeadProgram | None:
        """The program of the network before training; None where it cannot be loaded any more."""
        try:
            net = self.untrained()
            self.prepare(net)
            return self._program_of(net)
        except ValueError:  # RunError, DataError or RecipeError
            return None

    def _head_accuracy(self, network: TrainedHead, examples: Examples) -> Callable[[], float]:
        """What measures a network on examples by :meth:`head_measure`, at the posterior expectation."""
        encoded = self.encode(network.codec, examples)
        batches = [self.completed(network, batch) for batch in self.batches(network, encoded, examples)]

        def accuracy() -> float:
            parts = [
                self.record(expected_of(network, *self.read(network, batch.tensors)[:2]), batch)
                for batch in batches
            ]
            return self.figures(joined(parts, range(len(examples))))[str(self.head_measure())] or 0.0

        return accuracy

    def drawing(self, num_samples: int, seed: int) -> Self:
        """The task with other draws."""
        prediction = self.recipe.prediction.model_copy(update={"num_samples": num_samples, "seed": seed})
        task = type(self)(self.recipe.model_copy(update={"prediction": prediction}))
        if "examples" in vars(self):
            task.examples = self.examples
        return task


def _length(encoded: Encoded) -> int:
    return max((len(row.get("input_ids", ())) for row in encoded.rows), default=0)
