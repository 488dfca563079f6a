"""Pre-training of language models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from probattn.data import DataError, Split
from probattn.data.identity import by_length
from probattn.files.durable import digest
from probattn.inference.session import derived_seed
from probattn.models import ElectraProgram
from probattn.models.electra import masked_number
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.program import seeded
from probattn.report import ModelKey, RunDescription
from probattn.report.bootstrap import Columns
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.predicted_tokens import stacked
from probattn.tasks.measured import joined, posterior_of, posteriors_of
from probattn.tasks.networks import in_batches, put_methods
from probattn.tasks.pretraining.evaluation import (
    MEASURES,
    Replaced,
    Trained,
    detection_columns,
    figures,
    generator_columns,
    tokens_of,
    validation_figures,
)
from probattn.tasks.pretraining.recipe import PretrainingRecipe
from probattn.tasks.pretraining.results import (
    PredictedToken,
    PretrainingAnswering,
    PretrainingResults,
    sections,
)
from probattn.tasks.pretraining.stream import (
    PassageStream,
    Row,
    TextStream,
    passages,
    special_ids,
    with_masks,
)
from probattn.tasks.pretraining.vocabulary import learned_tokenizer, loaded_tokenizer
from probattn.tasks.programs import Data
from probattn.tasks.scratch import ScratchTask
from probattn.tasks.topics import TopicData
from probattn.tasks.view import ResultsView

GENERATOR = "generator"
"""The generator of a run, a folder in that of the discriminator."""


class Pretraining(ScratchTask[PretrainingRecipe, PretrainingResults, Data, ElectraProgram]):
    """Pre-training of ELECTRA (Clark et al. 2020); a run saves the discriminator, and the generator in a subfolder."""

    section = "pretraining"
    measures = MEASURES
    recipe_class = PretrainingRecipe
    view = ResultsView(PretrainingResults, sections, "probattn.tasks.pretraining")
    unit = "passages"
    network_title = "ELECTRA"
    answering_class = PretrainingAnswering
    accuracy_title = "accuracy of detection"

    def num_outputs(self, net: Any) -> int:
        """One output: whether a token was replaced."""
        return 1

    @cached_property
    def texts(self) -> TextStream:
        """The recipe's texts."""
        return self.recipe.pretraining.stream()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the recipe, or after :meth:`load_net` that of the loaded network."""
        section, positions = self.recipe.pretraining, self.recipe.network.positions
        if section.tokenizer is not None:
            return loaded_tokenizer(section.tokenizer)
        return learned_tokenizer(
            self.texts.training, section.vocabulary, lowercase=section.lowercase, positions=positions
        )

    @cached_property
    def stream(self) -> PassageStream:
        """The training passages."""
        section = self.recipe.pretraining
        return PassageStream(
            self.texts,
            self.tokenizer,
            section.max_length,
            join=section.join,
            buffer=section.shuffle_buffer,
            seed=self.recipe.training.seed,
        )

    @cached_property
    def datasets(self) -> Mapping[str, Any]:
        """Stream of training passages, with an estimate of their number, and evaluated passages with fixed masks."""
        section = self.recipe.pretraining
        limits: dict[Split, int | None] = {
            "validation": section.limits.validation,
            "test": section.limits.test,
        }
        datasets: dict[str, Any] = {"train": self.stream}
        for split, number in limits.items():
            texts = self.texts.held_out(split)
            rows = passages(texts, self.tokenizer, section.max_length, join=section.join)
            special, share = special_ids(self.tokenizer), section.mask_probability
            datasets[split] = [with_masks(row, special, share) for row in islice(rows, number)]
            if not datasets[split]:
                raise DataError(f"{self.texts}: expected {split} texts with tokens, got none")
        return datasets

    def load_data(self) -> Data:
        """Reads all texts, so texts that cannot be used raise before training, and learns the vocabulary."""
        read = self.texts.read  # first: it says what is wrong with the texts
        words = sorted(self.tokenizer.get_vocab().items())
        fingerprint = {"data": read.digest, "vocabulary": digest([repr(words)])}
        collate = partial(stacked, self.tokenizer.pad_token_id)
        return Data(self.stream, self.datasets["validation"], collate, fingerprint)

    def driver_options(self, program: ElectraProgram) -> dict[str, Any]:
        """Options for data with a fixed order, which the training loop must not shuffle."""
        return {"shuffle": False}

    def untrained(self, codec: Any) -> tuple[ElectraForPreTraining, ElectraForMaskedLM]:
        """Discriminator and generator with random weights, determined by the seed, in training mode."""
        network = self.recipe.network
        common: dict[str, Any] = {
            "vocab_size": len(codec),
            "embedding_size": network.embedding,
            "max_position_embeddings": network.positions,
            "hidden_dropout_prob": network.dropout,
            "attention_probs_dropout_prob": network.attention_dropout,
            "initializer_range": network.initializer,
            "pad_token_id": codec.pad_token_id,
        }
        with seeded(self.recipe.training.seed):
            net = ElectraForPreTraining(ElectraConfig(**common, **network.sizes()))
            return net.train(), ElectraForMaskedLM(
                ElectraConfig(**common, **network.generator_sizes())
            ).train()

    def program_of(self, net: Any, **options: Any) -> ElectraProgram:
        """Discriminator and generator as a program, with the special tokens of the tokenizer."""
        section, network = self.recipe.pretraining, self.recipe.network
        return ElectraProgram(
            *net,
            mask_id=self.tokenizer.mask_token_id,
            special_ids=special_ids(self.tokenizer),
            mask_probability=section.mask_probability,
            weight=network.discriminator_weight,
            tied=network.tied,
            **options,
        )

    def program(self, *, baseline: bool = False) -> ElectraProgram:
        """The recipe's networks as a Pyro program; see :meth:`ProgramTask.program`."""
        stream: PassageStream = self.data.train
        networks = self.untrained(self.tokenizer)
        put_methods(networks[0], () if baseline else self.methods, self.recipe, self.network_title)
        lengths, candidates = torch.tensor(stream.counts).double().unbind(dim=1)
        masked = masked_number(candidates, self.recipe.pretraining.mask_probability)
        return self.program_of(
            networks,
            num_data=max(len(stream), self.recipe.training.batch_size),
            mean_length=lengths.mean().item(),
            mean_masked=masked.mean().item(),
        )

    def save_beside(self, program: ElectraProgram, folder: Path) -> None:
        """Saves the tokenizer, and the generator in a subfolder."""
        self.tokenizer.save_pretrained(folder)
        program.generator.save_pretrained(folder / GENERATOR)

    @staticmethod
    def validation_metrics(program: Any, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """For each text, the accuracy of detection, of calling all tokens original, and of the generator."""
        corrupted = program.corrupted(batch)
        logits = program({"input_ids": corrupted.input_ids, "attention_mask": batch["attention_mask"]})
        return validation_figures(logits, corrupted, program.candidates(batch))

    def load_net(self, folder: Path) -> Any:
        """Loads discriminator and generator from a folder; their tokenizer becomes that of the task."""
        networks = super().load_net(folder), open_pretrained(ElectraForMaskedLM, folder / GENERATOR)
        codec = open_pretrained(AutoTokenizer, folder)
        tokenizer = vars(self).get("tokenizer", codec)
        if tokenizer.get_vocab() != codec.get_vocab():
            raise RunError(
                f"{folder.parent}: expected a network with the vocabulary of the other one, got another; compare runs "
                "on the same texts"
            )
        self.tokenizer = codec
        return networks

    def load_codec(self, folder: Path) -> Any:
        """The tokenizer of the loaded network."""
        return self.tokenizer

    def words(self) -> Mapping[str, Any]:
        """Descriptions of networks and data for the report."""
        network, generator = self.recipe.network, self.recipe.network.generator_sizes()
        return {
            "network": f"ELECTRA, {network.layers} layers x {network.width}, {network.heads} heads; generator "
            f"{generator['num_hidden_layers']} x {generator['hidden_size']}; {len(self.tokenizer):,} tokens",
            "data": str(self.texts),
            "train_size": len(self.stream),
        }

    def measure(self, run: RunDescription, networks: Sequence[Trained]) -> PretrainingResults:
        """Measures every network on test passages with replacements by its generator."""
        table = {
            ("test", key): columns
            for network in networks
            for key, columns in self.columns_of(network, self.datasets["test"]).items()
        }
        return self.results_of(
            run,
            networks,
            table,
            figures,
            seed=self.recipe.prediction.seed,
            data=(self.test_set(str(self.texts)),),
            samples=self.samples(networks, self.take(self.recipe.report.samples)),
        )

    def batches(
        self, network: Trained, rows: Sequence[Row], *, generator: Trained | None = None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Passages on the network's device, with replacements by ``generator`` or else by the network's generator."""
        return (batch.inputs for batch in self.replaced(network, rows, generator=generator))

    def take(self, number: int) -> list[Row]:
        """The first ``number`` test passages, for topics of the report."""
        return list(self.datasets["test"][:number])

    def replaced(
        self, network: Trained, rows: Sequence[Row], *, generator: Trained | None = None
    ) -> Iterator[Replaced]:
        """Batches of passages with replacements by ``generator`` or else by the network's generator."""
        source = generator or network
        for step, chunk in enumerate(in_batches(rows, self.recipe.prediction.batch_size)):
            batch = network.moved(stacked(network.codec.pad_token_id, chunk))
            draw = torch.Generator(network.device).manual_seed(
                derived_seed(self.recipe.prediction.seed, step)
            )
            with torch.no_grad():
                corrupted = source.program.corrupted(batch, draw)
            inputs = {"input_ids": corrupted.input_ids, "attention_mask": batch["attention_mask"]}
            yield Replaced(inputs, source.program.candidates(batch), batch["original_ids"], corrupted)

    def columns_of(self, network: Trained, rows: Sequence[Row]) -> dict[ModelKey, Columns]:
        """Columns from which the measures are computed, by model, with one row per passage, in their order."""
        order = by_length(row["original_ids"] for row in rows)
        total = -(-len(rows) // self.recipe.prediction.batch_size)
        batches = self.replaced(network, [rows[index] for index in order])
        chunks: dict[ModelKey, list[Columns]] = {}
        for step, batch in enumerate(network.tracked(batches, "replaced tokens", total)):
            shared = generator_columns(batch.corrupted, self.recipe.report.bins)
            replaced, counted = batch.corrupted.replaced.cpu(), batch.counted.cpu()
            posteriors = posteriors_of(network, network.program, batch.inputs, self.recipe.prediction, step)
            for key, posterior in posteriors.items():
                detection = detection_columns(posterior.logits, replaced, counted, self.recipe.report.bins)
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
        """Predictions of all networks for each token of passages, with replacements by the last network's generator."""
        tokens: list[tuple[PredictedToken, ...]] = []
        for step, batch in enumerate(self.replaced(networks[-1], rows)):
            by_model = {
                network.key: posterior_of(
                    network, network.program, network.moved(batch.inputs), self.recipe.prediction, step
                ).mean_probabilities
                for network in networks
            }
            tokens += [
                tuple(tokens_of(networks[-1].codec, batch, row, by_model))
                for row in range(len(batch.original_ids))
            ]
        return tuple(tokens)

    def topic_data(self, networks: Sequence[Trained]) -> TopicData:
        """Test passages for the topics of the report, with replacements by the generator of the run."""
        return replace(super().topic_data(networks), batches=partial(self.batches, generator=networks[-1]))
