"""Questions about images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from probattn.data import (
    DataError,
    TokenizedVisualQuestions,
    VisualQuestionCollate,
    VisualQuestions,
    word_tokenizer,
    word_vectors,
)
from probattn.data.files import read_text
from probattn.data.visual_questions import frequent_answers, unanswerable
from probattn.files.durable import digest
from probattn.metrics.functional.texts import normal_answer
from probattn.models import McanConfig, McanForQuestionAnswering, VisualQuestionProgram
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.program import seeded
from probattn.report import DataSet, ModelKey, RunDescription
from probattn.tasks.answering import Drawing
from probattn.tasks.measured import joined, predictions
from probattn.tasks.networks import named_outputs
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.scratch import ScratchTask
from probattn.tasks.view import ResultsView
from probattn.tasks.visual_questions.page import sections
from probattn.tasks.visual_questions.questions import Trained, VisualAnswering, by_kind, sample_of
from probattn.tasks.visual_questions.recipe import VisualQuestionRecipe
from probattn.tasks.visual_questions.results import (
    MEASURES,
    VisualQuestionResults,
    VisualQuestionSample,
    answer_columns,
    figures,
)

TITLES = {"test": "Original", "noisy": "Noisy"}
Columns = dict[str, Tensor]


@dataclass(frozen=True)
class VisualQuestionData(Data):
    """Tokenized questions; ``unknown`` is the number of those of each role without an answer of the vocabulary."""

    answers: tuple[str, ...] = ()
    vectors: Tensor | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)


class VisualQuestionTask(
    ScratchTask[VisualQuestionRecipe, VisualQuestionResults, VisualQuestionData, VisualQuestionProgram]
):
    """Questions about images, answered by MCAN (Yu et al. 2019), without and with noise on the regions' features."""

    section = "visual_questions"
    measures = MEASURES
    recipe_class = VisualQuestionRecipe
    view = ResultsView(VisualQuestionResults, sections, "probattn.tasks.visual_questions")
    unit = "questions"
    network_title = "MCAN"
    answering_class = VisualAnswering
    accuracy_title = "accuracy"
    num_outputs = ProgramTask.num_outputs

    def notes(self) -> Iterable[str]:
        """Number of questions whose answers are all outside the vocabulary."""
        for role, missing in self.data.unknown.items():
            if missing:
                yield f"{role}: {missing:,} questions have no answer of the vocabulary and count as wrong"

    def load_data(self) -> VisualQuestionData:
        """Tokenizes the questions and selects the answers; images must exist as files, which are read later."""
        section, network, train = self.recipe.visual_questions, self.recipe.network, self.datasets["train"]
        words = (row.words for row in train.rows)
        tokenizer = word_tokenizer(words, min_frequency=section.min_frequency, split="spaces")
        answers = self._answers() or frequent_answers(train, section.min_answers)
        vectors = None
        if network.embeddings is not None:
            seed = self.recipe.training.seed
            vectors = word_vectors(tokenizer.get_vocab(), network.embeddings, seed=seed).weight
        rows = {
            role: TokenizedVisualQuestions(
                self.datasets[role], tokenizer, answers, max_length=section.max_length
            )
            for role in ("train", "validation")
        }
        unknown = {role: unanswerable(questions, answers) for role, questions in self.datasets.items()}
        fingerprint = {"data": digest(_digested(self.datasets, answers, vectors))}
        collate = VisualQuestionCollate(len(answers))
        if not self.restricted:
            self._check_roles(answers, unknown)
        return VisualQuestionData(
            rows["train"],
            rows["validation"],
            collate,
            fingerprint,
            None,
            tokenizer,
            answers,
            vectors,
            unknown,
        )

    def _answers(self) -> tuple[str, ...]:
        """The answers of the file that the recipe names; none where it names none."""
        section = self.recipe.visual_questions
        if section.answers is None:
            return ()
        lines = (line.strip() for line in read_text(section.file(section.answers)).splitlines())
        answers = tuple(dict.fromkeys(normal_answer(line) for line in lines if line))
        if len(answers) < 2:
            raise DataError(f"visual_questions.answers: expected two answers or more, got {len(answers)}")
        return answers

    def _check_roles(self, answers: Sequence[str], unknown: Mapping[str, int]) -> None:
        """Raises ``DataError`` for a part without known answers, or whose first image cannot be read."""
        for role, subset in self.datasets.items():
            subset.images.read(subset.images.path(subset.rows[0].image))
            if unknown[role] == len(subset):
                raise DataError(
                    f"{subset.source}: expected answers of the vocabulary ({', '.join(answers[:3])}, ...), got others "
                    f"alone, such as {subset.rows[0].answer!r}"
                )

    def untrained(self, codec: Any) -> McanForQuestionAnswering:
        """The recipe's network with random weights and word vectors, in training mode."""
        return new_network(self.recipe, len(codec), self.data.answers, self.data.vectors)

    def start(self, network: Trained) -> VisualQuestionProgram:
        """The program of a trained network with its weights before training."""
        return self.program_of(new_network(self.recipe, len(network.codec), network.names))

    def program_of(self, net: Any, **options: Any) -> VisualQuestionProgram:
        """A network as a program."""
        return VisualQuestionProgram(net, **options)

    def driver_options(self, program: VisualQuestionProgram) -> dict[str, Any]:
        """The papers' learning rates by epoch, if the recipe requests them."""
        schedule = self.recipe.training.epoch_schedule()
        return {} if schedule is None else {"scheduler": schedule}

    def save_beside(self, program: VisualQuestionProgram, folder: Path) -> None:
        """Saves the tokenizer; the answers are part of the network's configuration."""
        self.data.codec.save_pretrained(folder)

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Accuracy of each question of a batch."""
        predicted = program(batch).argmax(dim=-1, keepdim=True)
        return {"accuracy": batch["labels"].gather(1, predicted)[:, 0]}

    def load_codec(self, folder: Path) -> Any:
        """The tokenizer of a trained network."""
        return open_pretrained(AutoTokenizer, folder)

    def words(self) -> Mapping[str, Any]:
        """Descriptions of network and data for the report."""
        network, train = self.recipe.network, self.datasets["train"]
        images = len({row.image for row in train.rows})
        return {
            "network": f"MCAN, {network.layers} layers x {network.width}, {network.heads} heads, "
            f"{len(self.data.answers):,} answers",
            "data": f"{train.source}, {images:,} images",
            "train_size": len(train),
        }

    def rows(self, network: Trained, questions: VisualQuestions) -> TokenizedVisualQuestions:
        """Encoded questions; images are cached once read."""
        length = self.recipe.visual_questions.max_length
        return TokenizedVisualQuestions(questions, network.codec, network.names, max_length=length)

    def batches(
        self, network: Trained, rows: VisualQuestions | TokenizedVisualQuestions, *, noisy: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """Questions on the network's device, in their order, with noise on the regions' features if ``noisy``."""
        rows = self.rows(network, rows) if isinstance(rows, VisualQuestions) else rows
        config, prediction = network.net.config, self.recipe.prediction
        grid = None if config.grid_size is None else (config.grid_size**2, config.region_size)
        variance = (self.recipe.visual_questions.noise or 0.0) if noisy else 0.0
        collate = VisualQuestionCollate(len(rows.answers), variance, grid, prediction.seed)
        for batch in DataLoader(rows, batch_size=prediction.batch_size, collate_fn=collate):
            yield {name: tensor.to(network.device) for name, tensor in batch.items()}

    def columns_of(
        self, network: Trained, keys: Sequence[str]
    ) -> Iterator[tuple[tuple[str, ModelKey], Columns]]:
        """Columns from which the measures are computed, by data set ("test", "noisy") and model."""
        rows, prediction = self.rows(network, self.datasets["test"]), self.recipe.prediction
        total = -(-len(rows) // prediction.batch_size)
        for key in keys:
            chunks: dict[ModelKey, list[Columns]] = {}
            batches = self.batches(network, rows, noisy=key == "noisy")
            for number, batch in enumerate(
                network.tracked(batches, f"answers ({TITLES[key].lower()})", total)
            ):
                models = predictions(
                    network, [network.moved(batch)], Drawing.of(prediction), first_batch=number
                )
                for model, answered in models.items():
                    columns = answer_columns(answered, batch["labels"], self.recipe.report.bins)
                    chunks.setdefault(model, []).append(columns)
            for model, value in chunks.items():
                yield (key, model), joined(value, range(len(rows)))

    def measure(self, run: RunDescription, networks: Sequence[Trained]) -> VisualQuestionResults:
        """Answers the test questions, without and with noise, and measures the answers."""
        keys = ["test", *(["noisy"] if self.recipe.visual_questions.noise is not None else [])]
        columns_by_key = dict(chain.from_iterable(self.columns_of(network, keys) for network in networks))
        table = {
            pair: columns_by_key[pair]
            for pair in sorted(columns_by_key, key=lambda pair: keys.index(pair[0]))
        }
        accuracies = {model: columns["accuracy"] for (key, model), columns in table.items() if key == "test"}
        return self.results_of(
            run,
            networks,
            table,
            figures,
            seed=self.recipe.report.seed,
            clusters={key: [row.image for row in self.datasets["test"].rows] for key in keys},
            data=tuple(self._described(key) for key in keys),
            listings=(by_kind(self.datasets["test"], accuracies),),
            samples=tuple(self._samples(networks)),
        )

    def _described(self, key: str) -> DataSet:
        test, noise = self.datasets["test"], self.recipe.visual_questions.noise
        words = f", Gaussian noise of variance {noise:g} on the regions" if key == "noisy" else ""
        role, images = "shifted" if key == "noisy" else "in_domain", len({row.image for row in test.rows})
        described = {"key": key, "title": TITLES[key], "role": role, "cluster": "images", "clusters": images}
        return self.test_set(f"{test.source}{words}", **described)

    def _samples(self, networks: Sequence[Trained]) -> Iterator[VisualQuestionSample]:
        """A fixed choice of test questions with answers and maps."""
        count = self.recipe.report.samples
        sample = self.datasets["test"].take(count) if count else self.datasets["test"].at(())
        for index in range(len(sample)):
            single = sample.at([index])
            batches = {network.key: next(self.batches(network, single)) for network in networks}
            yield sample_of(networks, batches, single, self.recipe.prediction)

    def accuracy(self, network: Trained, rows: VisualQuestions) -> Callable[[], float]:
        """A function that measures the accuracy of the answers at the posterior expectation."""
        batches = list(self.batches(network, rows))

        def measured() -> float:
            with torch.no_grad():
                accuracies = [
                    self.validation_metrics(network.program, batch)["accuracy"] for batch in batches
                ]
            return torch.cat(accuracies).mean().item()

        return measured


def _digested(
    questions: Mapping[str, VisualQuestions], answers: Sequence[str], vectors: Tensor | None
) -> Iterator[str | bytes]:
    """What a fingerprint of the data is made of; of an image its file's size and time stand for its content."""
    yield f"{tuple(answers)}\1"
    for role, dataset in questions.items():
        yield f"{role}\0{replace(dataset.images, folder=Path())}\1"
        yield from (f"{row}\1" for row in dataset.rows)
        for image in dict.fromkeys(row.image for row in dataset.rows):
            file = dataset.images.path(image).stat()
            yield f"{file.st_size} {file.st_mtime_ns}\1"
    if vectors is not None:
        yield vectors.numpy().tobytes()


def new_network(
    recipe: VisualQuestionRecipe, words: int, answers: Sequence[str], vectors: Tensor | None = None
) -> McanForQuestionAnswering:
    """The recipe's network with random weights, a function of the seed, and word vectors ``[V, E]``."""
    network, data = recipe.network, recipe.visual_questions
    config = McanConfig(
        vocab_size=words,
        embedding_size=network.embedding_size if vectors is None else vectors.shape[1],
        hidden_size=network.width,
        num_hidden_layers=network.layers,
        num_attention_heads=network.heads,
        intermediate_size=network.feed_forward or 4 * network.width,
        fused_size=network.fused or 2 * network.width,
        region_size=data.regions or network.channels[-1],
        dropout=network.dropout,
        grid_channels=network.channels if data.regions is None else None,
        image_size=data.image_size,
        glimpses=network.glimpses,
        latent_reduction=network.latent_reduction,
        **named_outputs(answers),
    )
    if config.grid_size is not None:  # the number of regions in a file is known when it is read
        config.max_position_embeddings = max(data.max_length, config.grid_size**2)
    with seeded(recipe.training.seed):
        net = McanForQuestionAnswering(config).train()
    if vectors is not None:
        with torch.no_grad():
            net.embed_tokens.weight.copy_(vectors)
    return net
