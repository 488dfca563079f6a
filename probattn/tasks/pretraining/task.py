"""Pre-training: recipe to networks to report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from probattn.data import DataError, Split
from probattn.files.durable import digest
from probattn.models import ElectraProgram, StoredNetworkError, load
from probattn.models.electra import masked_number
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.program import seeded
from probattn.report import DataSet, RunDescription
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.fine_tuning.predicted_tokens import stacked
from probattn.tasks.networks import Network, check_finished, model_key, on_device, put_methods, quiet_loading
from probattn.tasks.pretraining.answering import PretrainingAnswering
from probattn.tasks.pretraining.evaluation import MEASURES, Evaluation, Trained, figures, validation_figures
from probattn.tasks.pretraining.recipe import PretrainingRecipe
from probattn.tasks.pretraining.results import PretrainingResults, sections
from probattn.tasks.pretraining.stream import (
    PassageStream,
    Row,
    TextStream,
    passages,
    special_ids,
    with_masks,
)
from probattn.tasks.pretraining.vocabulary import learned_tokenizer, loaded_tokenizer
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.topics import TopicData
from probattn.tasks.view import ResultsView

GENERATOR = "generator"
"""The generator of a run, a folder in that of the discriminator."""


class Pretraining(ProgramTask[PretrainingRecipe, PretrainingResults, Data, ElectraProgram]):
    """ELECTRA's pre-training (Clark et al. 2020); a run keeps the discriminator, with the generator inside."""

    section = "pretraining"
    measures = MEASURES
    recipe_class = PretrainingRecipe
    view = ResultsView(PretrainingResults, sections, "probattn.tasks.pretraining")
    unit = "passages"

    def num_outputs(self, net: Any) -> int:
        """One: whether a token was replaced."""
        return 1

    @cached_property
    def texts(self) -> TextStream:
        """The recipe's texts."""
        return self.recipe.pretraining.stream()

    @cached_property
    def tokenizer(self) -> Any:
        """The recipe's tokenizer, or that of a trained network once one was loaded."""
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
    def held_out(self) -> Mapping[Split, list[Row]]:
        """Passages to choose by and to measure on, each with masks that are a function of its tokens."""
        section = self.recipe.pretraining
        limits: dict[Split, int | None] = {
            "validation": section.limits.validation,
            "test": section.limits.test,
        }
        rows_by_split: dict[Split, list[Row]] = {}
        for split, number in limits.items():
            texts = self.texts.held_out(split)
            rows = passages(texts, self.tokenizer, section.max_length, join=section.join)
            special, share = special_ids(self.tokenizer), section.mask_probability
            rows_by_split[split] = [with_masks(row, special, share) for row in islice(rows, number)]
            if not rows_by_split[split]:
                raise DataError(f"{self.texts}: expected {split} texts with tokens, got none")
        return rows_by_split

    @property
    def test(self) -> list[Row]:
        """Passages to measure on."""
        return self.held_out["test"]

    def sizes(self) -> Mapping[str, int]:
        """Number of passages of each part, of those to train on approximately."""
        return {
            "training": len(self.stream),
            "validation": len(self.held_out["validation"]),
            "test": len(self.test),
        }

    def load_data(self) -> Data:
        """Reads all texts once, so that none is refused after training begins, and learns the vocabulary."""
        read = self.texts.read  # first: it says what is wrong with the texts
        words = sorted(self.tokenizer.get_vocab().items())
        fingerprint = {"data": read.digest, "vocabulary": digest([repr(words)])}
        collate = partial(stacked, self.tokenizer.pad_token_id)
        return Data(self.stream, self.held_out["validation"], collate, fingerprint)

    def driver_options(self, program: ElectraProgram) -> dict[str, Any]:
        """The stream has an order of its own."""
        return {"shuffle": False}

    def build(self, codec: Any) -> tuple[ElectraForPreTraining, ElectraForMaskedLM]:
        """Discriminator and generator with random weights, a function of the seed, in training mode."""
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

    def program_of(self, net: Any, generator: Any, codec: Any, **options: Any) -> ElectraProgram:
        """The two networks as a program."""
        section, network = self.recipe.pretraining, self.recipe.network
        return ElectraProgram(
            net,
            generator,
            mask_id=codec.mask_token_id,
            special_ids=special_ids(codec),
            mask_probability=section.mask_probability,
            weight=network.discriminator_weight,
            tied=network.tied,
            **options,
        )

    def program(self, *, baseline: bool = False) -> ElectraProgram:
        """The recipe's networks as a Pyro program; see the base class."""
        stream: PassageStream = self.data.train
        net, generator = self.build(self.tokenizer)
        put_methods(net, () if baseline else self.methods, self.recipe, "ELECTRA")
        lengths, candidates = torch.tensor(stream.counts).double().unbind(dim=1)
        masked = masked_number(candidates, self.recipe.pretraining.mask_probability)
        return self.program_of(
            net,
            generator,
            self.tokenizer,
            num_data=max(len(stream), self.recipe.training.batch_size),
            mean_length=lengths.mean().item(),
            mean_masked=masked.mean().item(),
        )

    def save_beside(self, program: ElectraProgram, folder: Path) -> None:
        """Saves the tokenizer, and the generator in a folder of its own."""
        self.tokenizer.save_pretrained(folder)
        program.generator.save_pretrained(folder / GENERATOR)

    @staticmethod
    def validation_metrics(program: Any, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Accuracies of each text: of detection, of calling all tokens original, of the generator."""
        corrupted = program.corrupted(batch)
        logits = program({"input_ids": corrupted.input_ids, "attention_mask": batch["attention_mask"]})
        return validation_figures(logits, corrupted, program.candidates(batch))

    def network(self, folder: Path) -> Trained:
        """Loads a trained discriminator with its tokenizer and its generator."""
        path = check_finished(folder)
        with quiet_loading():
            net = load(path)
            try:
                codec = open_pretrained(AutoTokenizer, path)
                generator = open_pretrained(ElectraForMaskedLM, path / GENERATOR)
            except StoredNetworkError as error:
                raise RunError(one_line(error)) from error
        tokenizer = vars(self).get("tokenizer", codec)
        if tokenizer.get_vocab() != codec.get_vocab():
            raise RunError(
                f"{folder}: expected a network with the vocabulary of the other one, got another; compare runs on the "
                "same texts"
            )
        self.tokenizer = codec
        return Network(on_device(self.program_of(net, generator, codec)), folder, model_key(net), codec)

    def words(self) -> Mapping[str, Any]:
        """Networks and data, in words."""
        network, generator = self.recipe.network, self.recipe.network.generator_sizes()
        return {
            "network": f"ELECTRA, {network.layers} layers x {network.width}, {network.heads} heads; generator "
            f"{generator['num_hidden_layers']} x {generator['hidden_size']}; {len(self.tokenizer):,} tokens",
            "data": str(self.texts),
            "train_size": len(self.stream),
        }

    @property
    def evaluation(self) -> Evaluation:
        """What predicts and measures on passages."""
        return Evaluation(self.recipe.prediction, self.recipe.report.bins)

    def measure(self, run: RunDescription, networks: Sequence[Trained]) -> PretrainingResults:
        """Measures every network on test passages with replacements of its own generator."""
        table = {
            ("test", key): columns
            for network in networks
            for key, columns in self.evaluation.columns(network, self.test).items()
        }
        described = DataSet(
            key="test",
            title="Test",
            role="in_domain",
            size=len(self.test),
            labelled=True,
            source=str(self.texts),
            unit=self.unit,
        )
        return self.results_of(
            run,
            networks,
            table,
            figures,
            seed=self.recipe.prediction.seed,
            data=(described,),
            samples=self.evaluation.samples(networks, self.test[: self.recipe.report.samples]),
        )

    def topic_data(self, networks: Sequence[Trained]) -> TopicData:
        """Test passages as the topics of the report read them, with replaced tokens."""
        evaluation = self.evaluation
        return TopicData(
            take=lambda number: self.test[:number],
            batches=lambda network, rows: (
                batch.inputs for batch in evaluation.replaced(network, rows, generator=networks[-1])
            ),
            start=lambda: self.program_of(*self.build(networks[-1].codec), networks[-1].codec),
            report=self.recipe.report,
            prediction=self.recipe.prediction,
            accuracy=evaluation.accuracy,
            measure="accuracy of detection",
        )

    @property
    def answering(self) -> PretrainingAnswering:
        """For each token of a text the probability that it was replaced."""
        return PretrainingAnswering(self)
