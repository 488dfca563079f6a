"""Test passages whose tokens a generator replaced, and what a discriminator says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probattn.inference.posterior import Posterior
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.inference.report import ModelKey
from probattn.inference.session import derived_seed
from probattn.models import ElectraProgram
from probattn.models.electra import Corrupted
from probattn.tasks.pretraining.measures import detection_columns, generator_columns
from probattn.tasks.pretraining.results import JudgedToken
from probattn.tasks.programs import Network, in_batches

Trained = Network[ElectraProgram]
Row = Mapping[str, list[int]]


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


def collate(pad: int, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Rows of tokens as a batch, filled up to the longest: the given names, and ``attention_mask``.

    Example:
        >>> collate(0, [{"original_ids": [2, 7, 3]}, {"original_ids": [2, 3]}])["attention_mask"]
        tensor([[1, 1, 1],
                [1, 1, 0]])
    """
    (name,) = rows[0]
    columns = [torch.tensor(row[name]) for row in rows]
    ones = [torch.ones_like(column) for column in columns]
    return {name: pad_sequence(columns, True, pad), "attention_mask": pad_sequence(ones, True, 0)}


@dataclass(frozen=True)
class Judge:
    """Measures networks on passages; the draws are a function of the seed and of the batch's number.

    Args:
        prediction: section of a recipe with ``batch_size``, ``seed``, ``num_samples`` and ``chunk_size``.
        bins: of confidence.
    """

    prediction: Any
    bins: int

    def replaced(
        self, network: Trained, rows: Sequence[Row], *, own: Trained | None = None
    ) -> Iterator[Replaced]:
        """Batches of passages with replacements by the generator of ``own``, the network's own by default."""
        source, pad = own or network, network.codec.pad_token_id
        for number, part in enumerate(in_batches(rows, self.prediction.batch_size)):
            batch = {name: tensor.to(network.device) for name, tensor in collate(pad, part).items()}
            draw = torch.Generator(network.device).manual_seed(derived_seed(self.prediction.seed, number))
            with torch.no_grad():
                corrupted = source.program.corrupted(batch, draw)
            inputs = {"input_ids": corrupted.input_ids, "attention_mask": batch["attention_mask"]}
            yield Replaced(inputs, source.program.candidates(batch), batch["original_ids"], corrupted)

    def posteriors(
        self, network: Trained, inputs: Mapping[str, Tensor], number: int
    ) -> dict[ModelKey, Posterior]:
        """Logits of having been replaced by model: of latent attention of draws, and at its expectation."""
        program, prediction = network.program, self.prediction
        if network.key != "bayesian_mean":
            with torch.no_grad():
                return {network.key: Posterior(program(inputs)[None].cpu(), link="sigmoid")}
        drawn = posterior_predict(
            program,
            inputs,
            prediction.num_samples,
            seed=(prediction.seed, number),
            chunk_size=prediction.chunk_size,
        )
        expected = posterior_expectation(program, inputs)[None].cpu()
        return {
            "bayesian_mean": Posterior(drawn.logits.cpu(), link="sigmoid"),
            "bayesian_expectation": Posterior(expected, link="sigmoid"),
        }

    def columns(self, network: Trained, rows: Sequence[Row]) -> dict[ModelKey, dict[str, Tensor]]:
        """What the measures are computed from, by model, one row a passage, in the order of the passages."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]["original_ids"]))
        total = -(-len(rows) // self.prediction.batch_size)
        batches = self.replaced(network, [rows[place] for place in order])
        parts: dict[ModelKey, list[dict[str, Tensor]]] = {}
        for number, batch in enumerate(network.tracked(batches, "replaced tokens", total)):
            shared = generator_columns(batch.corrupted)
            for key, posterior in self.posteriors(network, batch.inputs, number).items():
                found = detection_columns(
                    posterior.logits, batch.corrupted.replaced.cpu(), batch.counted.cpu(), self.bins
                )
                parts.setdefault(key, []).append(found | shared)
        back = torch.tensor(order).argsort()
        return {
            key: {name: torch.cat([part[name] for part in found])[back] for name in found[0]}
            for key, found in parts.items()
        }

    def accuracy(self, network: Trained, rows: Sequence[Row]) -> Any:
        """A function that measures the share of tokens seen rightly, always of the same replacements."""
        batches = list(self.replaced(network, rows))

        def measured() -> float:
            right = tokens = 0
            for batch in batches:
                with torch.no_grad():
                    said = network.program(batch.inputs) > 0
                right += int(((said == batch.corrupted.replaced) & batch.counted).sum())
                tokens += int(batch.counted.sum())
            return right / max(tokens, 1)

        return measured

    def samples(
        self, networks: Sequence[Trained], rows: Sequence[Row]
    ) -> tuple[tuple[JudgedToken, ...], ...]:
        """Passages token by token as every network reads them, with the replacements of the last one's generator."""
        found: list[tuple[JudgedToken, ...]] = []
        for number, batch in enumerate(self.replaced(networks[-1], rows)):
            judged = [
                self.posteriors(each, {name: t.to(each.device) for name, t in batch.inputs.items()}, number)[
                    each.key
                ].logits
                for each in networks
            ]
            by_model = {
                each.key: logits.sigmoid().mean(dim=0) for each, logits in zip(networks, judged, strict=True)
            }
            found += [
                tuple(self._tokens(networks[-1].codec, batch, row, by_model))
                for row in range(len(batch.original_ids))
            ]
        return tuple(found)

    def _tokens(
        self, codec: Any, batch: Replaced, row: int, by_model: Mapping[ModelKey, Tensor]
    ) -> Iterator[JudgedToken]:
        both = (batch.corrupted.input_ids, batch.original_ids)
        shown, originals = (codec.convert_ids_to_tokens(ids[row].tolist()) for ids in both)
        for place in batch.counted[row].nonzero()[:, 0].tolist():
            changed = shown[place] != originals[place]
            yield JudgedToken(
                token=shown[place],
                original=originals[place] if changed else None,
                masked=bool(batch.corrupted.masked[row, place]),
                probabilities={key: values[row, place].item() for key, values in by_model.items()},
            )
