"""Generation of texts about knowledge graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probattn.data import DataError, GraphTextCollate, GraphTexts, GraphVocabulary, TokenizedGraphTexts
from probattn.files.durable import digest
from probattn.metrics.functional import bleu, find_wordnet, meteor, rouge
from probattn.metrics.functional.texts import meteor_words
from probattn.models import (
    GraphTextProgram,
    GraphWriterConfig,
    GraphWriterForGeneration,
    WritingOptions,
    write_texts,
)
from probattn.models.program import IGNORED, seeded
from probattn.report import ModelKey, RunDescription, Sheet
from probattn.tasks.answering import Answering, Drawing
from probattn.tasks.errors import as_run_error
from probattn.tasks.graph_text.page import sections
from probattn.tasks.graph_text.recipe import GraphTextRecipe
from probattn.tasks.graph_text.results import (
    MEASURES,
    GraphTextResults,
    Written,
    digested,
    figures,
    row_to_write,
    samples_of,
    surfaces,
    text_columns,
    token_columns,
)
from probattn.tasks.measured import joined, posteriors_of
from probattn.tasks.networks import Network, check_finished, in_batches
from probattn.tasks.programs import Data
from probattn.tasks.scratch import ScratchTask
from probattn.tasks.view import ResultsView

VOCABULARY = "vocabulary.json"
"""The vocabulary of a run, in its folder for the model."""

Trained = Network[GraphTextProgram]


class GraphTextAnswering(Answering):
    """Texts about graphs, each given as a line of AGENDA's files up to its relations, without draws."""

    task: GraphTextTask

    reads = "single lines"
    undrawn = "texts are written at the posterior expectation, without draws"
    no_moments = "texts come without any"

    def check(self, run: Path) -> Callable[[str], object]:
        """Whether a line is one to write about."""
        return partial(row_to_write, vocabulary=self.task.load_codec(check_finished(run)))

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[dict[str, Any]]:
        """One text a line; see the base class."""
        network = self.task.network(run)
        for batch in in_batches((line for line, _ in rows), self.task.recipe.search.batch_size):
            graphs = tuple(row_to_write(line, network.codec) for line in batch)
            texts = GraphTexts(graphs, network.codec.relations, "predict")
            for line, graph, tokens in zip(batch, graphs, self.task.written(network, texts), strict=True):
                copied = sorted({token for token in tokens if isinstance(token, int)})
                yield {
                    "text": line,
                    "written": graph.named(tokens),
                    "copied": [graph.entities[number] for number in copied],
                }

    def answers(self, answers: Sequence[dict[str, Any]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A text a line, and the same for programs."""
        return "\n".join(answer["written"] for answer in answers), list(answers)

    def columns(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The written text."""
        return {"written": answer["written"]}


class GraphTextTask(ScratchTask[GraphTextRecipe, GraphTextResults, Data, GraphTextProgram]):
    """Generation of texts by GraphWriter (Koncel-Kedziorski et al. 2019), at the posterior expectation of attention."""

    section = "graph_text"
    measures = MEASURES
    recipe_class = GraphTextRecipe
    view = ResultsView(GraphTextResults, sections, "probattn.tasks.graph_text")
    unit = "texts"
    network_title = "GraphWriter"
    answering_class = GraphTextAnswering
    texts_file = "texts.jsonl"
    collate_class = GraphTextCollate

    @cached_property
    def wordnet(self) -> Any:
        """Source of METEOR's synonyms; None to use none."""
        return find_wordnet()

    def load_data(self) -> Data:
        """Tokenizes all texts, and checks before training that the packages of the measures are installed."""
        with as_run_error(ImportError):
            bleu(["a"], ["a"])
            meteor(["a"], ["a"], self.wordnet)
            rouge(["a"], ["a"])
        vocabulary = GraphVocabulary.of(self.datasets["train"], self.recipe.graph_text.min_frequency)
        fingerprint = {"data": digest(digested(self.datasets))}
        return self.tokenized_data(vocabulary, fingerprint)

    def tokenized(self, rows: GraphTexts, codec: GraphVocabulary) -> TokenizedGraphTexts:
        """Tokenized texts, truncated as the recipe specifies."""
        return TokenizedGraphTexts(rows, codec, max_length=self.recipe.graph_text.max_length)

    def untrained(self, codec: GraphVocabulary) -> GraphWriterForGeneration:
        """The recipe's network with random weights, determined by the seed, in training mode."""
        network = self.recipe.network
        config = GraphWriterConfig(
            vocab_size=len(codec),
            num_relations=len(codec.relations),
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

    def program_of(self, net: Any, **options: Any) -> GraphTextProgram:
        """A network as a program, with the recipe's penalty on repeated copying."""
        return GraphTextProgram(net, coverage=self.recipe.network.coverage, **options)

    def program_options(self) -> Mapping[str, Any]:
        """The mean length of a text, by which the likelihood is divided."""
        return {"mean_length": self.data.train.mean_target_length}

    def save_beside(self, program: GraphTextProgram, folder: Path) -> None:
        """Saves the vocabulary."""
        self.data.codec.save(folder / VOCABULARY)

    def load_codec(self, folder: Path) -> GraphVocabulary:
        """The vocabulary of a trained network in its folder."""
        with as_run_error(DataError):
            return GraphVocabulary.load(folder / VOCABULARY)

    def network_words(self) -> str:
        """Description of the network for the report."""
        network, words = self.recipe.network, len(self.data.codec)
        return (
            f"GraphWriter, {network.layers} blocks x {network.width}, {network.heads} heads, {words:,} words"
        )

    def written(self, network: Trained, texts: GraphTexts, doing: str = "texts") -> Written:
        """Texts that a network generates about graphs, in their order."""
        options: WritingOptions = self.recipe.search.build()
        order = texts.shortest_first()
        batches = self.sized_batches(network, texts.at(order), options.batch_size)
        total = -(-len(texts) // options.batch_size)
        shut = network.codec.type_tokens
        batches_of_labels = write_texts(
            network.program, network.tracked(batches, doing, total), options, suppress=shut
        )
        rows = [network.codec.tokens(labels) for batch in batches_of_labels for labels in batch]
        return [rows[row] for row in torch.tensor(order).argsort().tolist()]

    def token_columns(self, network: Trained, texts: GraphTexts) -> dict[ModelKey, dict[str, Tensor]]:
        """Columns from which the perplexity of the true texts is computed, by model (draws and expectation)."""
        order = texts.shortest_first()
        prediction = self.recipe.prediction
        batches = self.sized_batches(network, texts.at(order), prediction.batch_size)
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
        """Generates texts about the test graphs, saves them in the run's folder, and measures them."""
        last, test, report = networks[-1], self.datasets["test"], self.recipe.report
        texts = {network.key: self.written(network, test) for network in networks}
        table: dict[tuple[str, ModelKey], dict[str, Tensor]] = {}
        for network in networks:
            surface = surfaces(test, texts[network.key])
            columns = text_columns(surface, test, self.wordnet)
            table |= {
                ("test", key): columns | tokens for key, tokens in self.token_columns(network, test).items()
            }
        rows = ({"title": row.title, "entities": row.entities, "reference": row.surface} for row in test.rows)
        self.keep_texts(last.folder, rows, {key: surfaces(test, written) for key, written in texts.items()})
        return self.results_of(
            run,
            networks,
            table,
            figures,
            seed=report.seed,
            data=(self.test_set(f"{test.source}; {test.licence}"),),
            signature=f"{bleu(['a'], ['a']).signature}; {meteor_words(self.wordnet)}",
            samples=samples_of(test, texts, report.samples),
        )
