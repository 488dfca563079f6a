"""Texts about knowledge graphs: recipe to network to report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from probattn.data import DataError, GraphTextCollate, GraphTexts, GraphVocabulary, TokenizedGraphTexts
from probattn.files.durable import digest
from probattn.metrics.functional import bleu, find_wordnet, meteor, rouge
from probattn.metrics.functional.texts import meteor_words
from probattn.models import (
    GraphTextProgram,
    GraphWriterConfig,
    GraphWriterForGeneration,
    WritingOptions,
    load,
    write_texts,
)
from probattn.models.program import IGNORED, seeded
from probattn.models.translation import token_measures
from probattn.report import ModelKey, RunDescription
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.graph_text.answering import GraphTextAnswering
from probattn.tasks.graph_text.measures import MEASURES, figures, text_columns, token_columns
from probattn.tasks.graph_text.page import sections
from probattn.tasks.graph_text.recipe import GraphTextRecipe
from probattn.tasks.graph_text.results import (
    GraphTextResults,
    Written,
    digested,
    samples_of,
    surfaces,
    write_lines,
)
from probattn.tasks.measured import joined, posteriors_of
from probattn.tasks.networks import (
    Network,
    check_finished,
    model_key,
    on_device,
    put_methods,
    quiet_loading,
    search_words,
    text_set,
)
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.topics import TopicData
from probattn.tasks.view import ResultsView

VOCABULARY = "vocabulary.json"
"""The vocabulary of a run, in its folder for the model."""
TEXTS = "texts.jsonl"
"""All test texts of a run with what was written, one JSON object a line."""

Trained = Network[GraphTextProgram]


@dataclass(frozen=True)
class GraphTextData(Data):
    """Tokenized texts; ``vocabulary`` is that of the training texts."""

    vocabulary: Any = None


class GraphTextTask(ProgramTask[GraphTextRecipe, GraphTextResults, GraphTextData, GraphTextProgram]):
    """Texts by GraphWriter (Koncel-Kedziorski et al. 2019), which are written at the posterior expectation."""

    section = "graph_text"
    measures = MEASURES
    recipe_class = GraphTextRecipe
    view = ResultsView(GraphTextResults, sections, "probattn.tasks.graph_text")
    unit = "texts"

    def num_outputs(self, net: PreTrainedModel) -> int:
        """Words of the vocabulary."""
        return int(net.config.vocab_size)

    @cached_property
    def texts(self) -> Mapping[str, GraphTexts]:
        """The texts of the recipe by role, kept."""
        return self.recipe.graph_text.load()

    @cached_property
    def wordnet(self) -> Any:
        """Where METEOR's synonyms are from; None for none."""
        return find_wordnet()

    def sizes(self) -> Mapping[str, int]:
        """Number of texts of each part."""
        names = {"train": "training", "validation": "validation", "test": "test"}
        return {words: len(self.texts[role]) for role, words in names.items()}

    def load_data(self) -> GraphTextData:
        """Tokenizes everything; what measures need must be there before anything is trained."""
        try:
            bleu(["a"], ["a"])
            meteor(["a"], ["a"], self.wordnet)
            rouge(["a"], ["a"])
        except ImportError as error:
            raise RunError(one_line(error)) from error
        vocabulary = GraphVocabulary.of(self.texts["train"], self.recipe.graph_text.min_frequency)
        datasets = {
            "train": self.texts["train"],
            "validation": self.texts["validation"].at(self.texts["validation"].shortest_first()),
            "test": self.texts["test"],
        }
        tokenized = {role: self.tokenized(texts, vocabulary) for role, texts in datasets.items()}
        fingerprint = {"data": digest(digested(self.texts))}
        return GraphTextData(
            tokenized["train"], tokenized["validation"], GraphTextCollate(), fingerprint, None, vocabulary
        )

    def tokenized(self, texts: GraphTexts, vocabulary: GraphVocabulary) -> TokenizedGraphTexts:
        """Texts as the recipe cuts them."""
        return TokenizedGraphTexts(texts, vocabulary, max_length=self.recipe.graph_text.max_length)

    def build(self, vocabulary: GraphVocabulary) -> GraphWriterForGeneration:
        """The recipe's network with random weights, a function of the seed, in training mode."""
        network = self.recipe.network
        config = GraphWriterConfig(
            vocab_size=len(vocabulary),
            num_relations=len(vocabulary.relations),
            hidden_size=network.width,
            num_hidden_layers=network.layers,
            num_attention_heads=network.heads,
            feed_forward_size=network.feed_forward,
            lstm_layers=network.lstm_layers,
            dropout=network.dropout,
            attention_dropout=network.attention_dropout,
        )
        with seeded(self.recipe.training.seed):
            return GraphWriterForGeneration(config).train()

    def program(self, *, baseline: bool = False) -> GraphTextProgram:
        """The recipe's network as a Pyro program; see the base class."""
        data = self.data
        net = self.build(data.vocabulary)
        put_methods(net, () if baseline else self.methods, self.recipe, "GraphWriter")
        return GraphTextProgram(
            net,
            num_data=len(data.train),
            mean_length=data.train.mean_target_length,
            coverage=self.recipe.network.coverage,
        )

    def save_beside(self, program: GraphTextProgram, folder: Path) -> None:
        """Saves the vocabulary."""
        self.data.vocabulary.save(folder / VOCABULARY)

    @staticmethod
    def validation_metrics(program: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Contributions of each text to perplexity and token accuracy."""
        return token_measures(program(batch), batch["labels"])

    def network(self, folder: Path) -> Trained:
        """Loads a trained network and its vocabulary."""
        path = check_finished(folder)
        with quiet_loading():
            net = load(path)
        program = GraphTextProgram(net, coverage=self.recipe.network.coverage)
        return Network(on_device(program), folder, model_key(net), self.vocabulary(path))

    def vocabulary(self, folder: Path) -> GraphVocabulary:
        """The vocabulary of a trained network in its folder."""
        try:
            return GraphVocabulary.load(folder / VOCABULARY)
        except DataError as error:
            raise RunError(one_line(error)) from error

    def words(self) -> Mapping[str, Any]:
        """Network and data, in words."""
        network, train = self.recipe.network, self.texts["train"]
        vocabulary = len(self.data.vocabulary)
        return {
            "network": f"GraphWriter, {network.layers} blocks x {network.width}, {network.heads} heads, "
            f"{vocabulary:,} words",
            "data": train.source,
            "train_size": len(train),
            "search": search_words(self.recipe.search),
        }

    def batches(self, network: Trained, texts: GraphTexts, size: int) -> Iterator[dict[str, Tensor]]:
        """Texts on the network's device, in their order."""
        for batch in DataLoader(
            self.tokenized(texts, network.codec), batch_size=size, collate_fn=GraphTextCollate()
        ):
            yield {name: tensor.to(network.device) for name, tensor in batch.items()}

    def written(self, network: Trained, texts: GraphTexts, doing: str = "texts") -> Written:
        """What a network writes about graphs, in their order."""
        options: WritingOptions = self.recipe.search.build()
        order = texts.shortest_first()
        batches = self.batches(network, texts.at(order), options.batch_size)
        total = -(-len(texts) // options.batch_size)
        shut = network.codec.type_tokens
        batches_of_labels = write_texts(
            network.program, network.tracked(batches, doing, total), options, suppress=shut
        )
        rows = [network.codec.tokens(labels) for batch in batches_of_labels for labels in batch]
        return [rows[row] for row in torch.tensor(order).argsort().tolist()]

    def token_columns(self, network: Trained, texts: GraphTexts) -> dict[ModelKey, dict[str, Tensor]]:
        """What the perplexity of the true texts is computed from, by model: of draws and at the expectation."""
        order = texts.shortest_first()
        prediction = self.recipe.prediction
        batches = self.batches(network, texts.at(order), prediction.batch_size)
        total = -(-len(texts) // prediction.batch_size)
        chunks: dict[ModelKey, list[dict[str, Tensor]]] = {}
        for number, batch in enumerate(network.tracked(batches, "probabilities of the true texts", total)):
            for key, columns in self._token_columns(network, batch, number).items():
                chunks.setdefault(key, []).append(columns)
        return {key: joined(tensors, order) for key, tensors in chunks.items()}

    def _token_columns(
        self, network: Trained, batch: Mapping[str, Tensor], number: int
    ) -> dict[ModelKey, dict[str, Tensor]]:
        labels = batch["labels"]
        real, targets = labels != IGNORED, labels.clamp_min(0)
        inputs = {name: value for name, value in batch.items() if name != "labels"}

        def read(rows: Mapping[str, Tensor]) -> Tensor:
            """Log-probability of each true token, and whether it is the first choice, ``[B, T, 2]``."""
            log_probabilities: Tensor = network.program(rows)
            true = targets.repeat(len(log_probabilities) // len(targets), 1)
            likelihood = log_probabilities.gather(2, true[..., None])[..., 0]
            return torch.stack(
                [likelihood, (log_probabilities.argmax(dim=-1) == true).to(likelihood)], dim=-1
            )

        posteriors = posteriors_of(network, read, inputs, self.recipe.prediction, number)
        columns = {
            key: token_columns(drawn.logits[..., 0], drawn.logits[0, ..., 1].bool(), real.cpu())
            for key, drawn in posteriors.items()
        }
        if network.key == "bayesian_mean":  # texts are written at the expectation
            columns["bayesian_mean"]["correct"] = columns["bayesian_expectation"]["correct"]
        return columns

    def measure(self, run: RunDescription, networks: Sequence[Trained]) -> GraphTextResults:
        """Writes the test texts, keeps them beside the records, and measures them."""
        last, test, report = networks[-1], self.texts["test"], self.recipe.report
        texts = {network.key: self.written(network, test) for network in networks}
        table: dict[tuple[str, ModelKey], dict[str, Tensor]] = {}
        for network in networks:
            surface = surfaces(test, texts[network.key])
            columns = text_columns(surface, test, self.wordnet)
            table |= {
                ("test", key): columns | tokens for key, tokens in self.token_columns(network, test).items()
            }
        write_lines(last.folder / TEXTS, test, texts)
        return self.results_of(
            run,
            networks,
            table,
            figures,
            seed=report.seed,
            data=(text_set(test, self.unit),),
            signature=f"{bleu(['a'], ['a']).signature}; {meteor_words(self.wordnet)}",
            samples=samples_of(test, texts, report.samples),
        )

    def topic_data(self, networks: Sequence[Trained]) -> TopicData:
        """Test texts as the topics of the report read them."""
        return TopicData(
            take=self.texts["test"].take,
            batches=lambda network, texts: self.batches(network, texts, self.recipe.prediction.batch_size),
            start=lambda: GraphTextProgram(self.build(networks[-1].codec)),
            report=self.recipe.report,
            prediction=self.recipe.prediction,
            accuracy=lambda network, texts: partial(self._token_accuracy, network, texts),
            measure="token accuracy",
        )

    def _token_accuracy(self, network: Trained, texts: GraphTexts) -> float:
        """Share of tokens of the true texts that are the first choice."""
        right = tokens = 0.0
        for batch in self.batches(network, texts, self.recipe.prediction.batch_size):
            with torch.no_grad():
                sums = token_measures(network.program(batch), batch["labels"])
            right, tokens = right + sums["correct"].sum().item(), tokens + sums["tokens"].sum().item()
        return right / tokens

    @property
    def answering(self) -> GraphTextAnswering:
        """Texts about graphs."""
        return GraphTextAnswering(self)
