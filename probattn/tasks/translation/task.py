"""Translation: recipe to network to report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from probattn.data import PairCollate, ParallelSplits, SentencePairs, Subwords, TokenizedPairs
from probattn.files.durable import digest
from probattn.files.json_files import write_json_lines
from probattn.inference import TraceGraphMeanFieldELBO
from probattn.metrics.functional import bleu, bleu_counts
from probattn.models import AlignmentGuide, SearchOptions, Translator, VariationalTranslator, load, translate
from probattn.models.program import seeded
from probattn.models.translation import token_measures
from probattn.models.translation.variational import MAX_PLATE_NESTING
from probattn.report import Curve, ModelKey, RunDescription
from probattn.report.bootstrap import Columns
from probattn.tasks.answering import Drawing, Limits
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.measured import joined
from probattn.tasks.networks import (
    Network,
    check_finished,
    check_frozen_probe,
    model_key,
    on_device,
    put_methods,
    quiet_loading,
    search_words,
    text_set,
)
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.topics import TopicData
from probattn.tasks.translation.answering import UNDRAWN, TranslationAnswering
from probattn.tasks.translation.networks import TITLES, build_network, network_words
from probattn.tasks.translation.recipe import TranslationRecipe
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
TRANSLATIONS = "translations.jsonl"
"""All test sentences of a run with their references and translations, one JSON object a line."""

TrainedTranslator = Network[Translator]


@dataclass(frozen=True)
class PairData(Data):
    """Tokenized sentence pairs; ``subwords`` is the vocabulary, learned from the training pairs."""

    subwords: Any = None


class Translation(ProgramTask[TranslationRecipe, TranslationResults, PairData, Translator]):
    """Translation by an encoder-decoder, a Transformer or an LSTM, trained from random weights."""

    section = "translation"
    recipe_class = TranslationRecipe
    view = ResultsView(TranslationResults, sections, "probattn.tasks.translation", quantities=quantities)
    unit = "pairs"
    measures = MEASURES
    limits = Limits(draws=UNDRAWN)

    @property
    def is_uniform(self) -> bool:
        """Whether the network attends to all source tokens alike."""
        return self.recipe.network.uniform_attention

    @property
    def no_probe(self) -> str | None:
        """Why the network has no lexical probe."""
        name = self.recipe.network.name
        if name == "lstm":
            return None
        return (
            "expected a translation run of network.name 'lstm', whose output reads one context, so that it has a "
            f"lexical probe, got {name!r}"
        )

    def num_outputs(self, net: PreTrainedModel) -> int:
        """Tokens of the vocabulary."""
        return int(net.config.vocab_size)

    @cached_property
    def splits(self) -> ParallelSplits:
        """The sentence pairs of the recipe, read once."""
        return self.recipe.translation.load()

    def sizes(self) -> Mapping[str, int]:
        """Number of pairs of each part."""
        splits = self.splits
        return {"training": len(splits.train), "validation": len(splits.validation), "test": len(splits.test)}

    def load_data(self) -> PairData:
        """Learns the subwords and tokenizes everything, so that no sentence is refused after training."""
        options, splits = self.recipe.translation, self.splits
        texts = splits.train.sources + splits.train.targets
        subwords = Subwords.train(texts, options.subwords, options.subword_model)
        roles = splits.roles()
        roles["validation"] = splits.validation.rows(splits.validation.shortest_first())
        tokenized = {role: self.tokenized(pairs, subwords) for role, pairs in roles.items()}
        return PairData(
            tokenized["train"],
            tokenized["validation"],
            PairCollate(),
            {
                "data": digest(_digested(splits))
            },  # and with it the subwords, which the recipe learns from them
            None if self.recipe.probe is None else self._watched(subwords),
            subwords,
        )

    def tokenized(self, pairs: SentencePairs, subwords: Subwords) -> TokenizedPairs:
        """Sentence pairs as the recipe cuts them."""
        options = self.recipe.translation
        return TokenizedPairs(pairs, subwords, max_length=options.max_length, on_long=options.on_long)

    def _watched(self, subwords: Subwords) -> Watched:
        options = self.recipe.probe
        assert options is not None
        watched: SentencePairs = getattr(self.splits, options.part).take(options.examples)
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
        """Whether attention is deterministic and no other method is asked for."""
        return super().is_plain and not self.recipe.is_variational

    def program(self, *, baseline: bool = False) -> Translator:
        """The recipe's network as a Pyro program; see the base class."""
        recipe, data = self.recipe, self.data
        net = build_network(recipe, len(data.subwords))
        check_frozen_probe(net, recipe.training, recipe.network.name)
        put_methods(net, () if baseline else self.methods, recipe, TITLES[recipe.network.name])
        options: dict[str, Any] = {
            "num_data": len(data.train),
            "label_smoothing": recipe.training.label_smoothing,
            "mean_length": data.train.mean_target_length if recipe.training.per == "token" else None,
        }
        if recipe.is_variational and not baseline:
            return VariationalTranslator(net, prediction=recipe.attention.prediction, **options)
        return Translator(net, **options)

    def save_beside(self, program: Any, folder: Path) -> None:
        """Saves the vocabulary."""
        self.data.subwords.save(folder / SUBWORDS)

    def driver_options(self, program: Translator) -> dict[str, Any]:
        """Guide and estimator of a latent alignment."""
        if not isinstance(program, VariationalTranslator):
            return {}
        with seeded(self.recipe.training.seed):
            guide = AlignmentGuide(program, self.recipe.attention.estimator)
        exact = self.recipe.attention.estimator == "enumerate"
        elbo = TraceEnum_ELBO(max_plate_nesting=MAX_PLATE_NESTING) if exact else TraceGraphMeanFieldELBO()
        return {"guide": guide, "elbo": elbo}

    @staticmethod
    def validation_metrics(program: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Contributions of each pair to perplexity and token accuracy."""
        return token_measures(program(batch), batch["labels"])

    def network(self, folder: Path) -> TrainedTranslator:
        """Loads a trained network and its vocabulary; latent attention translates at its expectation."""
        path = check_finished(folder)
        with quiet_loading():
            net = load(path)
        key = model_key(net)
        return Network(
            on_device(Translator(net)),
            folder,
            "bayesian_expectation" if key == "bayesian_mean" else key,
            Subwords.load(path / SUBWORDS),
        )

    def batches(self, network: TrainedTranslator, pairs: SentencePairs) -> Iterator[dict[str, Tensor]]:
        """Sentence pairs on the network's device, the shortest first."""
        rows = self.tokenized(pairs.rows(pairs.shortest_first()), network.codec)
        size = self.recipe.search.batch_size
        for batch in DataLoader(rows, batch_size=size, collate_fn=PairCollate()):
            yield {name: tensor.to(network.device) for name, tensor in batch.items()}

    def token_columns(self, network: TrainedTranslator, pairs: SentencePairs) -> dict[str, Tensor]:
        """What perplexity and token accuracy are computed from, a row a pair."""
        chunks = []
        for inputs in self.batches(network, pairs):
            with torch.no_grad():
                measures = token_measures(network.program(inputs), inputs["labels"])
            chunks.append({name: values.cpu() for name, values in measures.items()})
        return joined(chunks, pairs.shortest_first())

    def curves(self, network: TrainedTranslator) -> Sequence[Curve]:
        """Training curves, with figures per token of the validation pairs."""
        return translation_curves(network.records, network.key)

    def words(self) -> Mapping[str, Any]:
        """Network and data, in words."""
        train = self.splits.train
        return {
            "network": network_words(self.recipe),
            "data": train.source,
            "train_size": len(train),
            "search": search_words(self.recipe.search),
        }

    def measure(self, run: RunDescription, networks: Sequence[TrainedTranslator]) -> TranslationResults:
        """Translates the test sentences, measures the translations, and writes them beside the records."""
        last, test = networks[-1], self.splits.test
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
        try:
            counts = {key: bleu_counts(texts, test.targets) for key, texts in translations.items()}
            signature = bleu(translations[last.key], test.targets).signature
        except ImportError as error:
            raise RunError(one_line(error)) from error
        _write_translations(last.folder / TRANSLATIONS, test, translations)
        table: dict[tuple[str, ModelKey], Columns] = {
            ("test", network.key): {"counts": counts[network.key], **self.token_columns(network, test)}
            for network in networks
        }
        title = "Test, {} to {}".format(*test.languages)
        described = text_set(test, "sentences").model_copy(update={"title": title})
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

    def topic_data(self, networks: Sequence[TrainedTranslator]) -> TopicData:
        """Test pairs as the topics of the report read them."""
        return TopicData(
            take=self.splits.test.take,
            batches=self.batches,
            start=lambda: Translator(build_network(self.recipe, len(networks[-1].codec))),
            report=self.recipe.report,
            prediction=Drawing(seed=self.recipe.report.seed, batch_size=self.recipe.search.batch_size),
            accuracy=lambda network, pairs: partial(self._token_accuracy, network, pairs),
            measure="token accuracy",
        )

    def _token_accuracy(self, network: TrainedTranslator, pairs: SentencePairs) -> float:
        """Share of subwords that are the first choice."""
        columns = self.token_columns(network, pairs)
        return columns["correct"].double().sum().item() / columns["tokens"].double().sum().item()

    @property
    def answering(self) -> TranslationAnswering:
        """Translations of sentences."""
        return TranslationAnswering(self)


def _digested(splits: ParallelSplits) -> Iterator[str]:
    """What a fingerprint of the data is made of, so that a run is not resumed on others."""
    for role, pairs in splits.roles().items():
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


def _write_translations(path: Path, test: SentencePairs, translations: dict[ModelKey, list[str]]) -> None:
    rows = enumerate(zip(test.sources, test.targets, strict=True))
    write_json_lines(
        path,
        (
            {"source": source, "reference": reference}
            | {key: texts[row] for key, texts in translations.items()}
            for row, (source, reference) in rows
        ),
    )
