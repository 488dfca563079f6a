"""Pre-training: recipe to networks to report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from probattn.checks import shortened, shown
from probattn.data import DataError, Split
from probattn.inference.moments import Uncertainty
from probattn.inference.report import DataSet, Group, Heads, RunDescription, Sheet, training_curves
from probattn.inference.report.evaluation import reliability_bins
from probattn.inference.report.sites import SiteHealth
from probattn.models import ElectraProgram, StoredNetworkError, load, save
from probattn.models.hosts.card import describe as describe_network
from probattn.models.hosts.pretrained import open_pretrained
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.fine_tuning.measures import binned_sums
from probattn.tasks.fine_tuning.results import MeasuredScores, compare
from probattn.tasks.heads import measure_heads
from probattn.tasks.measured import MeasuredTask
from probattn.tasks.pretraining.corpus import Corpus, PassageStream, passages
from probattn.tasks.pretraining.judging import Judge, Row, Trained, collate
from probattn.tasks.pretraining.measures import MEASURES, compared, figures, validation_figures
from probattn.tasks.pretraining.page import render
from probattn.tasks.pretraining.recipe import PretrainingRecipe
from probattn.tasks.pretraining.results import PretrainingResults
from probattn.tasks.pretraining.vocabulary import learned_tokenizer, loaded_tokenizer
from probattn.tasks.programs import (
    HEALTH_BATCHES,
    Data,
    Network,
    check_finished,
    digest,
    health,
    in_batches,
    measured,
    model_key,
    on_device,
    put_methods,
    quiet_loading,
)

GENERATOR = "generator"
"""The generator of a run, a folder in that of the discriminator."""
DIGITS = 6
"""Digits behind the point of figures in answers."""


class Pretraining(MeasuredTask[PretrainingRecipe, PretrainingResults, Data, ElectraProgram]):
    """ELECTRA's pre-training (Clark et al. 2020): a generator fills in masked tokens, a discriminator finds its own.

    The discriminator is what a run keeps: its folder ``model`` is a network of transformers with its tokenizer, which
    other recipes take as their network. The generator lies in a folder within it.
    """

    section = "pretraining"
    measures = MEASURES
    recipe_class = PretrainingRecipe
    results_class = PretrainingResults
    unit = "passages"
    no_limit = None
    no_draws = None

    def num_outputs(self, net: Any) -> int:
        """One: whether a token was replaced."""
        return 1

    @cached_property
    def corpus(self) -> Corpus:
        """The recipe's texts."""
        return self.recipe.pretraining.corpus()

    @cached_property
    def tokenizer(self) -> Any:
        """The recipe's tokenizer, or that of a trained network once one was loaded."""
        section, positions = self.recipe.pretraining, self.recipe.network.positions
        if section.tokenizer is not None:
            return loaded_tokenizer(section.tokenizer)
        return learned_tokenizer(
            self.corpus.training, section.vocabulary, lowercase=section.lowercase, positions=positions
        )

    @cached_property
    def stream(self) -> PassageStream:
        """The training passages."""
        section = self.recipe.pretraining
        return PassageStream(
            self.corpus,
            self.tokenizer,
            section.max_length,
            join=section.join,
            buffer=section.shuffle_buffer,
            seed=self.recipe.training.seed,
        )

    def held_rows(self, split: Split) -> list[Row]:
        """Passages to choose by or to measure on."""
        section = self.recipe.pretraining
        most = section.validation_passages if split == "validation" else section.test_passages
        rows = passages(self.corpus.held_out(split), self.tokenizer, section.max_length, join=section.join)
        found: list[Row] = list(islice(rows, most))
        if not found:
            raise DataError(f"{self.sources}: expected {split} texts with tokens, got none")
        return found

    @cached_property
    def test(self) -> list[Row]:
        """Passages to measure on."""
        return self.held_rows("test")

    @property
    def sources(self) -> str:
        """The corpus, in words."""
        return shortened(", ".join(Path(each).name for each in self.recipe.pretraining.texts), 100)

    def sizes(self) -> Mapping[str, int]:
        """Number of passages of each part, of those to train on approximately."""
        return {
            "training": len(self.stream),
            "validation": len(self.data.validation),
            "test": len(self.test),
        }

    def restricted_recipe(self, limit: int | None, num_samples: int | None) -> PretrainingRecipe:
        """The recipe with fewer test passages, or another number of draws."""
        section, prediction = self.recipe.pretraining, self.recipe.prediction
        if limit is not None:
            fewer = min(limit, section.test_passages or limit)
            section = section.model_copy(update={"test_passages": fewer})
        if num_samples is not None:
            prediction = prediction.model_copy(update={"num_samples": num_samples})
        return self.recipe.model_copy(update={"pretraining": section, "prediction": prediction})

    def load_data(self) -> Data:
        """Reads all texts once, so that none is refused after training begins, and learns the vocabulary."""
        content, _, _ = self.corpus.read
        words = sorted(self.tokenizer.get_vocab().items())
        fingerprint = {"data": content, "vocabulary": digest([repr(words)])}
        pad = self.tokenizer.pad_token_id
        assert self.test
        return Data(self.stream, self.held_rows("validation"), partial(collate, pad), fingerprint)

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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.training.seed)
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
            special_ids=set(codec.all_special_ids) - {codec.unk_token_id},
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
        share, lengths = self.recipe.pretraining.mask_probability, stream.lengths
        return self.program_of(
            net,
            generator,
            self.tokenizer,
            num_data=max(len(stream), self.recipe.training.batch_size),
            mean_length=fmean(lengths),
            mean_masked=fmean(math.ceil((length - 2) * share - 1e-9) for length in lengths),
        )

    def save(self, program: ElectraProgram, folder: Path) -> None:
        """Keeps the discriminator with its tokenizer, and the generator in a folder within."""

        def beside(place: Path) -> None:
            self.tokenizer.save_pretrained(place)
            program.generator.save_pretrained(place / GENERATOR)

        with quiet_loading():
            net: Any = program.net
            save(describe_network(net, data=self.sources), folder, beside=beside)

    @staticmethod
    def validation_metrics(program: Any, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Accuracies of each text: of replaced tokens, of calling all tokens original, of the generator."""
        corrupted = program.corrupted(batch)
        logits = program({"input_ids": corrupted.input_ids, "attention_mask": batch["attention_mask"]})
        return validation_figures(logits, corrupted, program.candidates(batch))

    def network(self, folder: Path) -> Trained:
        """Loads a trained discriminator with its tokenizer and its generator."""
        place = check_finished(folder)
        with quiet_loading():
            net = load(place)
            try:
                codec = open_pretrained(AutoTokenizer, place)
                generator = open_pretrained(ElectraForMaskedLM, place / GENERATOR)
            except StoredNetworkError as error:
                raise RunError(one_line(error)) from error
        known = vars(self).get("tokenizer", codec)
        if known.get_vocab() != codec.get_vocab():
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
            "data": self.sources,
            "train_size": len(self.stream),
        }

    @property
    def judge(self) -> Judge:
        """What measures a network on passages."""
        return Judge(self.recipe.prediction, self.recipe.report.bins)

    def measure(self, run: RunDescription, networks: Sequence[Trained]) -> PretrainingResults:
        """Measures every network on test passages with replacements of its own generator."""
        own, report = networks[-1], self.recipe.report
        table = {
            ("test", key): columns
            for each in networks
            for key, columns in self.judge.columns(each, self.test).items()
        }
        described = DataSet(
            key="test",
            title="Test",
            role="in_domain",
            size=len(self.test),
            labelled=True,
            source=self.sources,
            unit=self.unit,
        )
        return PretrainingResults(
            kind=str(self.section),
            run=run,
            data=(described,),
            scores=tuple(
                MeasuredScores(
                    model=model,
                    data=data,
                    values=figures(columns),
                    reliability=reliability_bins(binned_sums(columns["bins"])),
                )
                for (data, model), columns in table.items()
            ),
            differences=compare(
                table,
                compared,
                resamples=report.resamples,
                level=report.level,
                seed=self.recipe.prediction.seed,
            ),
            samples=self.judge.samples(networks, self.test[: report.samples]),
            heads=self._heads(networks) if "heads" in measured(own.net) else None,
            health=self._health(own),
            curves=tuple(curve for each in networks for curve in training_curves(each.records, each.key)),
        )

    def _heads(self, networks: Sequence[Trained]) -> Heads | None:
        """Differences between the heads of the discriminators, and the accuracy without each."""
        own, report, judge = networks[-1], self.recipe.report, self.judge
        chosen, fewer = self.test[: report.head_texts], self.test[: report.masked_texts]
        start = on_device(self.program_of(*self.build(own.codec), own.codec))
        return measure_heads(
            networks,
            Network(start, own.folder, "deterministic", own.codec),
            lambda network: (batch.inputs for batch in judge.replaced(network, chosen, own=own)),
            lambda network: judge.accuracy(network, fewer),
            texts=len(chosen),
            masked=len(fewer),
        )

    def _health(self, own: Trained) -> tuple[SiteHealth, ...]:
        prediction = self.recipe.prediction
        few = self.test[: HEALTH_BATCHES * prediction.batch_size]
        inputs = (batch.inputs for batch in self.judge.replaced(own, few))
        return health(own, inputs, prediction, chunk_size=prediction.chunk_size)

    def predict(
        self,
        run: Path,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        num_samples: int = 20,
        seed: int = 0,
        uncertainty: Uncertainty = "draws",
    ) -> Iterator[dict[str, Any]]:
        """For each token of a text the probability that it was replaced, as it stands; see the base class."""
        if pairs is not None:
            raise RunError(f"{run}: its network reads single texts; expected no second texts")
        if uncertainty != "draws":
            raise RunError(
                f"{run}: expected uncertainty draws, got {uncertainty}: tokens have no closed form"
            )
        prediction = self.recipe.prediction.model_copy(update={"num_samples": num_samples, "seed": seed})
        network = self.network(run)
        judge = Judge(prediction, self.recipe.report.bins)

        def answered() -> Iterator[dict[str, Any]]:
            for number, part in enumerate(in_batches(texts, prediction.batch_size)):
                rows = [self._given(network, text) for text in part]
                inputs = network.moved(collate(network.codec.pad_token_id, rows))
                draws = judge.posteriors(network, inputs, number)[network.key].logits.sigmoid()
                for row, (text, given) in enumerate(zip(part, rows, strict=True)):
                    yield self._answer(network, text, given["input_ids"], draws[:, row])

        return answered()

    def _given(self, network: Trained, text: str) -> dict[str, list[int]]:
        ids = network.codec(text, verbose=False)["input_ids"]
        most = network.net.config.max_position_embeddings
        if not 2 < len(ids) <= most:
            raise RunError(
                f"expected a text of 1 to {most - 2} tokens, the network's positions less begin and end, got "
                f"{len(ids) - 2}: {shown(text)}"
            )
        return {"input_ids": ids}

    @staticmethod
    def _answer(network: Trained, text: str, ids: list[int], draws: Tensor) -> dict[str, Any]:
        names = network.codec.convert_ids_to_tokens(ids)
        mean = draws.mean(dim=0).tolist()
        spread = (draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(draws[0])).tolist()
        tokens = [
            {
                "token": names[place],
                "replaced": round(mean[place], DIGITS),
                "std": round(spread[place], DIGITS),
            }
            for place in range(1, len(ids) - 1)
        ]
        return {"text": text, "tokens": tokens}

    @classmethod
    def columns(cls, answer: dict[str, Any]) -> dict[str, Any]:
        """The most suspect token and its probability, and the mean over tokens."""
        suspect = max(answer["tokens"], key=lambda token: token["replaced"])
        mean = sum(token["replaced"] for token in answer["tokens"]) / len(answer["tokens"])
        return {
            "suspect": suspect["token"],
            "replaced": suspect["replaced"],
            "mean_replaced": round(mean, DIGITS),
        }

    @classmethod
    def answers(cls, found: Sequence[dict[str, Any]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """Tokens with the probability of having been replaced, text by text, and the same for programs."""
        groups = tuple(
            Group(
                each["text"],
                tuple(
                    (token["token"], f"{token['replaced']:.3f}", f"{token['std']:.3f}")
                    for token in each["tokens"]
                ),
            )
            for each in found
        )
        return Sheet(("Token", "Replaced", "Std of draws"), groups, words=1), list(found)

    @classmethod
    def page(cls, results: PretrainingResults) -> str:
        """The report."""
        return render(results)
