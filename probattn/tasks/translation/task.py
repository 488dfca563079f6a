"""Translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.data import PairCollate, SentencePairs, Subwords, TokenizedPairs
from probattn.files.durable import digest
from probattn.inference import TraceGraphMeanFieldELBO
from probattn.metrics.functional import bleu, bleu_counts
from probattn.models import (
    AlignmentGuide,
    RecurrentForTranslation,
    RecurrentTranslationConfig,
    SearchOptions,
    TransformerSize,
    Translator,
    VariationalTranslator,
    build_transformer,
    translate,
)
from probattn.models.program import seeded
from probattn.models.translation import token_measures
from probattn.models.translation.variational import MAX_PLATE_NESTING
from probattn.report import Curve, ModelKey, RunDescription, Sheet
from probattn.report.bootstrap import Columns
from probattn.tasks.answering import Answering, Drawing, Limits
from probattn.tasks.errors import as_run_error
from probattn.tasks.measured import joined
from probattn.tasks.networks import Network, in_batches, put_methods
from probattn.tasks.programs import Data
from probattn.tasks.scratch import ScratchTask
from probattn.tasks.translation.recipe import TranslationNetworkRecipe, TranslationRecipe
from probattn.tasks.translation.results import (
    MEASURES,
    TranslationResults,
    TranslationSample,
    bleu_listing,
    figures,
    quantities,
    sections,
    step_seconds,
    translation_curves,
)
from probattn.tasks.view import ResultsView
from probattn.tasks.watching import Watched

SUBWORDS = "subwords.model"
"""The vocabulary of a run, in its folder for the model."""
TITLES = {"transformer": "Transformer", "lstm": "LSTM"}
"""What the networks are called in messages and reports."""
TrainedTranslator = Network[Translator]

UNDRAWN = "translations are those at the posterior expectation, without draws"


class TranslationAnswering(Answering):
    """Translations; draws play no part in them."""

    task: Translation

    undrawn = UNDRAWN
    no_moments = "translations come without any"

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[dict[str, str]]:
        """One translation a sentence; see the base class."""
        network, search = self.task.network(run), self.task.recipe.search.build()
        for batch in in_batches((text for text, _ in rows), search.batch_size):
            translations = translate(network.program, batch, network.codec, search)
            for text, translation in zip(batch, translations, strict=True):
                yield {"text": text, "translation": translation}

    def answers(self, answers: Sequence[dict[str, str]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A translation a line, and the same for programs."""
        return "\n".join(answer["translation"] for answer in answers), list(answers)

    def columns(self, answer: dict[str, str]) -> dict[str, Any]:
        """The translation."""
        return {"translation": answer["translation"]}


class Translation(ScratchTask[TranslationRecipe, TranslationResults, Data, Translator]):
    """Translation by an encoder-decoder, a Transformer or an LSTM, trained from random weights."""

    section = "translation"
    recipe_class = TranslationRecipe
    view = ResultsView(TranslationResults, sections, "probattn.tasks.translation", quantities=quantities)
    unit = "pairs"
    measures = MEASURES
    limits = Limits(draws=UNDRAWN)
    answering_class = TranslationAnswering
    texts_file = "translations.jsonl"
    collate_class = PairCollate

    @property
    def is_uniform(self) -> bool:
        """Whether the network has uniform attention over all source tokens."""
        return self.recipe.network.uniform_attention

    @property
    def no_probe(self) -> str | None:
        """Reason why the network has no lexical probe; None if it has one."""
        name = self.recipe.network.name
        if name == "lstm":
            return None
        return (
            "expected a translation run of network.name 'lstm', whose output reads one context, so that it has a "
            f"lexical probe, got {name!r}"
        )

    def load_data(self) -> Data:
        """Learns the subwords and tokenizes all sentences, so sentences that cannot be used raise before training."""
        options, train = self.recipe.translation, self.datasets["train"]
        subwords = Subwords.train(train.sources + train.targets, options.subwords, options.subword_model)
        watched = None if self.recipe.probe is None else self._watched(subwords)
        fingerprint = {"data": digest(_digested(self.datasets))}  # of which the subwords are a function
        return self.tokenized_data(subwords, fingerprint, watched)

    def tokenized(self, rows: SentencePairs, codec: Subwords) -> TokenizedPairs:
        """Tokenized sentence pairs, truncated as the recipe specifies."""
        options = self.recipe.translation
        return TokenizedPairs(rows, codec, max_length=options.max_length, on_long=options.on_long)

    def _watched(self, subwords: Subwords) -> Watched:
        options = self.recipe.probe
        assert options is not None
        watched: SentencePairs = self.datasets[options.part].take(options.examples)
        rows = self.tokenized(watched, subwords)

        def measure(model: nn.Module) -> float:
            assert isinstance(model, Translator)
            texts = translate(model, rows.pairs.sources, subwords, SearchOptions(num_beams=1))
            return bleu(texts, rows.pairs.targets).score

        return Watched(
            options,
            rows,
            PairCollate(),
            text=lambda row: rows.pairs.sources[row],
            keys=lambda row: subwords.pieces(rows[row]["input_ids"]),
            queries=lambda row: subwords.pieces(rows[row]["labels"]),
            bleu=measure if options.bleu else None,
        )

    @property
    def is_plain(self) -> bool:
        """Whether attention is deterministic and the recipe has no other method."""
        return super().is_plain and not self.recipe.is_variational

    def untrained(self, codec: Any) -> PreTrainedModel:
        """The recipe's network with random weights, determined by the seed, in training mode."""
        network, seed = self.recipe.network, self.recipe.training.seed
        if network.name == "lstm":
            with seeded(seed):
                return RecurrentForTranslation(recurrent_config(network, len(codec))).train()
        shared = {field.name for field in fields(TransformerSize)} - {"max_positions"}
        sizes = network.model_dump(include=shared)
        size = TransformerSize(**sizes, max_positions=self.recipe.translation.max_length)
        return build_transformer(size, len(codec), seed=seed)

    def program_of(self, net: Any, **options: Any) -> Translator:
        """A network as a program without latent alignment."""
        return Translator(net, **options)

    def program(self, *, baseline: bool = False) -> Translator:
        """The recipe's network as a Pyro program; see :meth:`ProgramTask.program`."""
        recipe, data = self.recipe, self.data
        net = self.untrained(data.codec)
        put_methods(net, () if baseline else self.methods, recipe, TITLES[recipe.network.name])
        options: dict[str, Any] = {
            "num_data": len(data.train),
            "label_smoothing": recipe.training.label_smoothing,
            "mean_length": data.train.mean_target_length if recipe.training.per == "token" else None,
        }
        if recipe.is_variational and not baseline:
            return VariationalTranslator(net, prediction=recipe.attention.prediction, **options)
        return self.program_of(net, **options)

    def save_beside(self, program: Any, folder: Path) -> None:
        """Saves the vocabulary."""
        self.data.codec.save(folder / SUBWORDS)

    def load_codec(self, folder: Path) -> Subwords:
        """The vocabulary of a trained network."""
        return Subwords.load(folder / SUBWORDS)

    def driver_options(self, program: Translator) -> dict[str, Any]:
        """Guide and gradient estimator of a latent alignment."""
        if not isinstance(program, VariationalTranslator):
            return {}
        with seeded(self.recipe.training.seed):
            guide = AlignmentGuide(program, self.recipe.attention.estimator)
        exact = self.recipe.attention.estimator == "enumerate"
        elbo = TraceEnum_ELBO(max_plate_nesting=MAX_PLATE_NESTING) if exact else TraceGraphMeanFieldELBO()
        return {"guide": guide, "elbo": elbo}

    def network(self, folder: Path) -> TrainedTranslator:
        """Loads a trained network and its vocabulary; latent attention translates at its posterior expectation."""
        network = super().network(folder)
        expected = network.key == "bayesian_mean"
        return replace(network, key="bayesian_expectation") if expected else network

    @property
    def drawing(self) -> Drawing:
        """Options of the predictions of topics."""
        return Drawing(seed=self.recipe.report.seed, batch_size=self.recipe.search.batch_size)

    def batches(self, network: TrainedTranslator, rows: SentencePairs) -> Iterator[Mapping[str, Tensor]]:
        """Sentence pairs on the network's device, shortest first."""
        return super().batches(network, rows.rows(rows.shortest_first()))

    def token_columns(self, network: TrainedTranslator, pairs: SentencePairs) -> dict[str, Tensor]:
        """Columns from which perplexity and token accuracy are computed, one row per sentence pair."""
        chunks = []
        for inputs in self.batches(network, pairs):
            with torch.no_grad():
                measures = token_measures(network.program(inputs), inputs["labels"])
            chunks.append({name: values.cpu() for name, values in measures.items()})
        return joined(chunks, pairs.shortest_first())

    def curves(self, network: TrainedTranslator) -> Sequence[Curve]:
        """Training curves; those of validation are per token."""
        return translation_curves(network.records, network.key)

    def network_words(self) -> str:
        """Description of the network for the report."""
        network, options = self.recipe.network, self.recipe.translation
        heads = f"{network.heads} head{'s' if network.heads > 1 else ''}"
        widths = " and ".join(str(width) for width in (network.width, network.decoder_width) if width)
        words = [TITLES[network.name], f"{network.layers} + {network.layers} layers x {widths}"]
        if network.name == "lstm":
            words += ["bidirectional"] if network.bidirectional else ["one-directional"]
            words += [heads] + (["uniform attention"] if network.uniform_attention else [])
        else:
            words += [heads, f"feed-forward {network.feed_forward}"]
        return ", ".join([*words, f"{options.subwords:,} subwords ({options.subword_model})"])

    def measure(self, run: RunDescription, networks: Sequence[TrainedTranslator]) -> TranslationResults:
        """Translates the test sentences, measures the translations, and saves them in the run's folder."""
        last, test = networks[-1], self.datasets["test"]
        options = self.recipe.search.build()
        translations: dict[ModelKey, list[str]] = {
            network.key: translate(
                network.program,
                test.sources,
                network.codec,
                options,
                progress=partial(network.tracked, doing="translations of the test sentences"),
            )
            for network in networks
        }
        with as_run_error(ImportError):
            counts = {key: bleu_counts(texts, test.targets) for key, texts in translations.items()}
            signature = bleu(translations[last.key], test.targets).signature
        pairs = zip(test.sources, test.targets, strict=True)
        rows = ({"source": source, "reference": reference} for source, reference in pairs)
        self.keep_texts(last.folder, rows, translations)
        table: dict[tuple[str, ModelKey], Columns] = {
            ("test", network.key): {"counts": counts[network.key], **self.token_columns(network, test)}
            for network in networks
        }
        title = "Test, {} to {}".format(*test.languages)
        described = self.test_set(f"{test.source}; {test.licence}", title=title, unit="sentences")
        results = self.results_of(
            run,
            networks,
            table,
            figures,
            seed=self.recipe.report.seed,
            data=(described,),
            languages=test.languages,
            signature=signature,
            samples=_samples(test, translations, self.recipe.report.samples),
        )
        seconds = {network.key: step_seconds(network.records) for network in networks}
        return results.model_copy(
            update={"listings": (*results.listings, bleu_listing(results.scores, seconds, signature))}
        )


def recurrent_config(network: TranslationNetworkRecipe, vocabulary: int) -> RecurrentTranslationConfig:
    """The configuration of a recipe's LSTM."""
    return RecurrentTranslationConfig(
        vocab_size=vocabulary,
        embedding_size=network.width,
        hidden_size=network.width,
        num_hidden_layers=network.layers,
        bidirectional=network.bidirectional,
        decoder_hidden_size=network.decoder_width or network.width,
        num_attention_heads=network.heads,
        output_size=network.width if network.output_width is None else network.output_width,
        dropout=network.dropout,
        hidden_dropout=network.recurrent_dropout,
        uniform_attention=network.uniform_attention,
    )


def _digested(datasets: Mapping[str, SentencePairs]) -> Iterator[str]:
    """What a fingerprint of the data is made of, so that a run is not resumed on others."""
    for role, pairs in datasets.items():
        yield role
        yield from (
            f"{source}\0{target}\1" for source, target in zip(pairs.sources, pairs.targets, strict=True)
        )


def _samples(
    test: SentencePairs, translations: dict[ModelKey, list[str]], number: int
) -> tuple[TranslationSample, ...]:
    """A fixed choice of test sentences, whatever their translations."""
    return tuple(
        TranslationSample(
            source=test.sources[row],
            reference=test.targets[row],
            translations={key: texts[row] for key, texts in translations.items()},
        )
        for row in (test.choice(number) if number else ())
    )
