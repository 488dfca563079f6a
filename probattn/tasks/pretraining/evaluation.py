"""What a discriminator predicts of test passages, in which a generator replaced tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probattn.inference.session import derived_seed
from probattn.models import ElectraProgram
from probattn.models.electra import Corrupted
from probattn.report import ModelKey
from probattn.report.bootstrap import Columns
from probattn.tasks.fine_tuning.predicted_tokens import stacked
from probattn.tasks.measured import joined, posterior_of, posteriors_of
from probattn.tasks.networks import Network, in_batches
from probattn.tasks.pretraining.measures import detection_columns, generator_columns
from probattn.tasks.pretraining.results import PredictedToken
from probattn.tasks.pretraining.stream import Row

Trained = Network[ElectraProgram]


@dataclass(frozen=True)
class Replaced:
    """A batch of texts as the discriminator reads them, on its device.

    Attributes:
        inputs: of the discriminator.
        counted: bool ``[B, T]``, the tokens that could have been replaced.
        original_ids: tokens of the texts themselves ``[B, T]``.
        corrupted: what the generator made of them.
    """

    inputs: Mapping[str, Tensor]
    counted: Tensor
    original_ids: Tensor
    corrupted: Corrupted


@dataclass(frozen=True)
class Evaluation:
    """Predictions of networks on passages; the draws are a function of the seed and of the batch's number.

    Args:
        prediction: section of a recipe with ``batch_size``, ``seed``, ``num_samples`` and ``chunk_size``.
        bins: of confidence.
    """

    prediction: Any
    bins: int

    def replaced(
        self, network: Trained, rows: Sequence[Row], *, generator: Trained | None = None
    ) -> Iterator[Replaced]:
        """Batches of passages with replacements by the generator of ``generator``, the network's own by default."""
        source = generator or network
        for number, chunk in enumerate(in_batches(rows, self.prediction.batch_size)):
            batch = network.moved(stacked(network.codec.pad_token_id, chunk))
            draw = torch.Generator(network.device).manual_seed(derived_seed(self.prediction.seed, number))
            with torch.no_grad():
                corrupted = source.program.corrupted(batch, draw)
            inputs = {"input_ids": corrupted.input_ids, "attention_mask": batch["attention_mask"]}
            yield Replaced(inputs, source.program.candidates(batch), batch["original_ids"], corrupted)

    def columns(self, network: Trained, rows: Sequence[Row]) -> dict[ModelKey, Columns]:
        """What the measures are computed from, by model, one row a passage, in the order of the passages."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]["original_ids"]))
        total = -(-len(rows) // self.prediction.batch_size)
        batches = self.replaced(network, [rows[index] for index in order])
        chunks: dict[ModelKey, list[Columns]] = {}
        for number, batch in enumerate(network.tracked(batches, "replaced tokens", total)):
            shared = generator_columns(batch.corrupted, self.bins)
            replaced, counted = batch.corrupted.replaced.cpu(), batch.counted.cpu()
            posteriors = posteriors_of(network, network.program, batch.inputs, self.prediction, number)
            for key, posterior in posteriors.items():
                detection = detection_columns(posterior.logits, replaced, counted, self.bins)
                chunks.setdefault(key, []).append(detection | shared)
        return {key: joined(posteriors, order) for key, posteriors in chunks.items()}

    def accuracy(self, network: Trained, rows: Sequence[Row]) -> Callable[[], float]:
        """A function that measures the accuracy of detection, always with the same replacements."""
        batches = list(self.replaced(network, rows))

        def measured() -> float:
            right = tokens = 0
            for batch in batches:
                with torch.no_grad():
                    predicted = network.program(batch.inputs) > 0
                right += int(((predicted == batch.corrupted.replaced) & batch.counted).sum())
                tokens += int(batch.counted.sum())
            return right / max(tokens, 1)

        return measured

    def samples(
        self, networks: Sequence[Trained], rows: Sequence[Row]
    ) -> tuple[tuple[PredictedToken, ...], ...]:
        """Passages token by token as every network reads them, with the replacements of the last one's generator."""
        tokens: list[tuple[PredictedToken, ...]] = []
        for number, batch in enumerate(self.replaced(networks[-1], rows)):
            by_model = {
                network.key: posterior_of(
                    network, network.program, network.moved(batch.inputs), self.prediction, number
                ).mean_probabilities
                for network in networks
            }
            tokens += [
                tuple(_tokens(networks[-1].codec, batch, row, by_model))
                for row in range(len(batch.original_ids))
            ]
        return tuple(tokens)


def _tokens(
    codec: Any, batch: Replaced, row: int, by_model: Mapping[ModelKey, Tensor]
) -> Iterator[PredictedToken]:
    for index in batch.counted[row].nonzero()[:, 0].tolist():
        token, original = (
            piece(codec, int(ids[row, index])) for ids in (batch.corrupted.input_ids, batch.original_ids)
        )
        yield PredictedToken(
            token=token,
            original=original if batch.corrupted.replaced[row, index] else None,
            probabilities={key: values[row, index].item() for key, values in by_model.items()},
        )


def piece(codec: Any, number: int) -> str:
    """A token as it reads within a text, with the space before it where it begins a word."""
    before, both = (
        codec.decode([codec.mask_token_id, *more], clean_up_tokenization_spaces=False)
        for more in ([], [number])
    )
    return str(both).removeprefix(before)
