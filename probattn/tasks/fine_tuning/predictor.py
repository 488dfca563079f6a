"""What a trained network with a head predicts of examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probattn.inference.expansion import Method, expansion_pays, posterior_moments
from probattn.inference.laplace import Features, last_features, last_layer
from probattn.inference.posterior import Posterior
from probattn.models.program import HeadProgram
from probattn.report import ModelKey
from probattn.report.bootstrap import Columns
from probattn.tasks.errors import as_run_error
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.measured import expected_of, joined, posterior_of, posteriors_of
from probattn.tasks.networks import Network, in_batches

if TYPE_CHECKING:
    from probattn.tasks.fine_tuning.task import HeadTask

TrainedHead = Network[HeadProgram]


@dataclass(frozen=True)
class Predictor:
    """Predictions of a trained network, batch by batch; the task reads examples and makes answers."""

    task: HeadTask
    network: TrainedHead

    def batches(self, examples: Examples, encoded: Sequence[Encoded] | None = None) -> Iterator[Batch]:
        """Batches of examples, in order; ``encoded`` are the same as the network reads them."""
        collate = self.task.collate(self.network.codec)
        encoded = self.task.encoded(self.network, examples) if encoded is None else encoded
        for indices in in_batches(range(len(examples)), self.task.recipe.prediction.batch_size):
            rows = [encoded[index] for index in indices]
            tensors = collate([row for item in rows for row in item.rows])
            yield Batch([examples[index] for index in indices], rows, tensors, self.network.net.config)

    def completed(self, examples: Examples, encoded: Sequence[Encoded] | None = None) -> Iterator[Batch]:
        """Batches of examples with what the network itself adds before they are measured."""
        return (self.task.completed(self.network, batch) for batch in self.batches(examples, encoded))

    def ordered(self, examples: Examples, doing: str = "") -> tuple[Iterator[Batch], list[int]]:
        """Completed batches with little padding, and the rows of their examples; ``doing`` shows their progress."""
        encoded = self.task.encoded(self.network, examples)
        order = self.task.shortest_first(examples, encoded)
        batches = self.completed([examples[row] for row in order], [encoded[row] for row in order])
        total = -(-len(examples) // self.task.recipe.prediction.batch_size)
        return self.network.tracked(batches, doing, total) if doing else batches, order

    def features(self, examples: Examples, title: str) -> Features:
        """What the last layer reads and says of the examples, in order; ``RunError`` where it reads no vectors."""
        network = self.network
        batches, order = self.ordered(examples, f"features of {title}")
        moved = (
            {name: value.to(network.device) for name, value in batch.tensors.items()} for batch in batches
        )
        with as_run_error(ValueError, where=f"{network.folder}: features of its network"):
            layer = last_layer(network.net, len(network.names))
            read, back = last_features(network.program, moved, layer), torch.tensor(order).argsort()
        labels = None if read.labels is None else read.labels[back]
        return Features(read.inputs[back], read.logits[back], labels)

    def expected(self, batch: Batch) -> Posterior:
        """The prediction of one pass, which takes latent attention at its expectation."""
        return expected_of(self.network, *self._inputs(batch))

    def drawn(self, batch: Batch, number: int, *, closed_form: bool = False) -> Posterior:
        """Draws of latent attention, or their closed form, or the one prediction without; ``number`` seeds them."""
        if closed_form and self.network.key == "bayesian_mean":
            return self._closed_form(batch, number)
        return posterior_of(self.network, *self._inputs(batch), self.task.recipe.prediction, number)

    def by_model(self, batch: Batch, number: int) -> dict[ModelKey, Posterior]:
        """Predictions by model: of latent attention of draws, at its expectation, and in closed form where it pays."""
        prediction = self.task.recipe.prediction
        posteriors = posteriors_of(self.network, *self._inputs(batch), prediction, number)
        drawn = posteriors.get("bayesian_mean")
        if drawn is not None and expansion_pays(
            drawn.logits, prediction.num_samples, self.network.program.link
        ):
            posteriors["bayesian_moments"] = self._closed_form(batch, number, "expansion")
        return posteriors

    def _inputs(self, batch: Batch) -> tuple[Any, dict[str, Tensor]]:
        """What reads a batch, and its inputs on the network's device."""
        inputs = self.network.program.inputs(batch.tensors)
        return (
            self.task.reading(self.network.program, batch.tensors),
            {name: value.to(self.network.device) for name, value in inputs.items()},
        )

    def _closed_form(self, batch: Batch, number: int, method: Method = "auto") -> Posterior:
        """Points with the mean and covariance of the predictions instead of draws."""
        prediction = self.task.recipe.prediction
        moments = posterior_moments(
            *self._inputs(batch),
            method=method,
            num_samples=max(prediction.num_samples, 2),
            seed=(prediction.seed, number),
        )
        points = moments.draws(max(prediction.num_samples, moments.classes.shape[-1] + 1))
        return replace(points, logits=points.logits.cpu())

    def columns(
        self, examples: Examples, title: str, *, labelled: bool = True
    ) -> tuple[dict[ModelKey, Columns], list[Answer]]:
        """Columns by model, and the answers of the network itself, in order; ``title`` names the progress."""
        task, network = self.task, self.network
        batches, order = self.ordered(examples, f"predictions ({title})")
        columns: dict[ModelKey, list[Columns]] = {}
        answers: list[Answer] = []
        for number, batch in enumerate(batches):
            for key, posterior in self.by_model(batch, number).items():
                record = dict((task.record if labelled else task.record_unlabelled)(posterior, batch))
                if key == network.key or task.detects:
                    answered = task.answer(posterior, batch)
                    answers += answered if key == network.key else []
                    if task.detects:
                        scores = [answer[task.ranked_by] for answer in answered]
                        record["uncertainty"] = torch.tensor(scores, dtype=torch.float64)
                columns.setdefault(key, []).append(record)
        number_of_batches = max(map(len, columns.values()))
        whole: dict[ModelKey, Columns] = {
            key: joined(records, order)
            for key, records in columns.items()
            if len(records) == number_of_batches  # the closed form, where it pays for every batch
        }
        return whole, [answers[row] for row in torch.tensor(order).argsort().tolist()]
