"""Questions about images: recipe to network to report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
from probattn.inference.expansion import posterior_moments
from probattn.inference.moments import Uncertainty
from probattn.inference.report import DataSet, Heads, ModelKey, RunDescription, Sheet
from probattn.inference.report.sites import SiteHealth
from probattn.models import McanConfig, McanForQuestionAnswering, VisualQuestionProgram, load
from probattn.models.hosts.pretrained import open_pretrained
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.results import Listing
from probattn.tasks.heads import measure_heads
from probattn.tasks.measured import MeasuredTask, joined
from probattn.tasks.programs import (
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
from probattn.tasks.visual_questions.measures import MEASURES, answer_columns, figures
from probattn.tasks.visual_questions.page import render
from probattn.tasks.visual_questions.predicting import Trained, answered, answers_of
from probattn.tasks.visual_questions.questions import (
    answer_sheet,
    by_kind,
    digested,
    given_questions,
    object_of,
    sample_of,
)
from probattn.tasks.visual_questions.recipe import VisualQuestionRecipe
from probattn.tasks.visual_questions.results import VisualQuestionResults, VisualQuestionSample

TITLES = {"test": "Original", "noisy": "Noisy"}
Columns = dict[str, Tensor]


@dataclass(frozen=True)
class VisualQuestionData(Data):
    """Tokenized questions.

    Attributes:
        tokenizer: of the training questions' words.
        answers: that the network chooses between.
        vectors: of the words ``[V, E]``, from which training starts; None for random ones.
    """

    tokenizer: Any = None
    answers: tuple[str, ...] = ()
    vectors: Tensor | None = None


class VisualQuestionTask(
    MeasuredTask[VisualQuestionRecipe, VisualQuestionResults, VisualQuestionData, VisualQuestionProgram]
):
    """Questions about images by MCAN (Yu et al. 2019), trained from random weights.

    Two data sets are measured: the test questions as they are, and with Gaussian noise on the features of the regions.
    """

    section = "visual_questions"
    measures = MEASURES
    recipe_class = VisualQuestionRecipe
    results_class = VisualQuestionResults
    unit = "questions"
    no_limit = None
    no_draws = None

    @cached_property
    def questions(self) -> Mapping[str, VisualQuestions]:
        """The questions of the recipe by role, kept."""
        return self.recipe.visual_questions.load()

    def sizes(self) -> Mapping[str, int]:
        """Number of questions of each part."""
        names = {"train": "training", "validation": "validation", "test": "test"}
        return {words: len(self.questions[role]) for role, words in names.items()}

    def notes(self) -> Iterable[str]:
        """How many questions have no answer that the network knows."""
        for role, part in self.questions.items():
            missing = unanswerable(part, self.data.answers)
            if missing:
                yield f"{role}: {missing:,} questions have no answer of the vocabulary and count as wrong"

    def restricted_recipe(self, limit: int | None, num_samples: int | None) -> VisualQuestionRecipe:
        """The recipe with fewer test questions, or another number of draws."""
        data, prediction = self.recipe.visual_questions, self.recipe.prediction
        if limit is not None:
            fewer = limit if data.test_questions is None else min(limit, data.test_questions)
            data = data.model_copy(update={"test_questions": fewer})
        if num_samples is not None:
            prediction = prediction.model_copy(update={"num_samples": num_samples})
        return self.recipe.model_copy(update={"visual_questions": data, "prediction": prediction})

    def load_data(self) -> VisualQuestionData:
        """Tokenizes all questions and chooses the answers; the images' files are there, and are read when needed."""
        section, train = self.recipe.visual_questions, self.questions["train"]
        tokenizer = word_tokenizer((row.question for row in train.rows), min_frequency=section.min_frequency)
        answers = self.answers_from_file() or frequent_answers(train, section.min_answers)
        for part in self.questions.values():
            unanswerable(part, answers)
        embeddings, seed = self.recipe.network.embeddings, self.recipe.training.seed
        vectors = (
            None if embeddings is None else word_vectors(tokenizer.get_vocab(), embeddings, seed=seed).weight
        )
        rows = {
            role: TokenizedVisualQuestions(part, tokenizer, answers, max_length=section.max_length)
            for role, part in self.questions.items()
        }
        return VisualQuestionData(
            rows["train"],
            rows["validation"],
            VisualQuestionCollate(len(answers)),
            {"data": digest(digested(self.questions, answers))},
            None,
            tokenizer,
            answers,
            vectors,
        )

    def answers_from_file(self) -> tuple[str, ...]:
        """The answers of the file that the recipe names; none where it names none."""
        name = self.recipe.visual_questions.answers
        if name is None:
            return ()
        lines = (line.strip() for line in read_text(self.recipe.visual_questions.file(name)).splitlines())
        found = tuple(dict.fromkeys(line for line in lines if line))
        if len(found) < 2:
            raise DataError(f"visual_questions.answers: expected two answers or more, got {len(found)}")
        return found

    def build(
        self, words: int, answers: Sequence[str], vectors: Tensor | None = None
    ) -> McanForQuestionAnswering:
        """The recipe's network with random weights, a function of the seed, in training mode."""
        network, data = self.recipe.network, self.recipe.visual_questions
        pictures = data.regions is None
        names = dict(enumerate(answers))
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
            grid_channels=network.channels if pictures else None,
            picture_size=data.picture_size,
            glimpses=network.glimpses,
            latent_reduction=network.latent_reduction,
            id2label=names,
            label2id={name: number for number, name in names.items()},
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.training.seed)
            net = McanForQuestionAnswering(config).train()
        if vectors is not None:
            with torch.no_grad():
                net.embed_tokens.weight.copy_(vectors)
        return net

    def program(self, *, baseline: bool = False) -> VisualQuestionProgram:
        """The recipe's network as a Pyro program; see the base class."""
        data = self.data
        net = self.build(len(data.tokenizer), data.answers, data.vectors)
        put_methods(net, () if baseline else self.methods, self.recipe, "MCAN")
        return VisualQuestionProgram(net, num_data=len(data.train))

    def driver_options(self, program: VisualQuestionProgram) -> dict[str, Any]:
        """The papers' learning rates by epoch, where the recipe asks for them."""
        schedule = self.recipe.training.epoch_schedule()
        return {} if schedule is None else {"scheduler": schedule}

    def save_beside(self, program: VisualQuestionProgram, folder: Path) -> None:
        """Saves the tokenizer; the answers are in the network's configuration."""
        self.data.tokenizer.save_pretrained(folder)

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Accuracy of each question of a batch."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        given = program(inputs).argmax(dim=-1, keepdim=True)
        return {"accuracy": batch["labels"].gather(1, given)[:, 0]}

    def network(self, folder: Path) -> Trained:
        """Loads a trained network and its tokenizer."""
        place = check_finished(folder)
        with quiet_loading():
            net = load(place)
            tokenizer = open_pretrained(AutoTokenizer, place)
        return Network(on_device(VisualQuestionProgram(net)), folder, model_key(net), tokenizer)

    def words(self) -> Mapping[str, Any]:
        """Network and data, in words."""
        network, train = self.recipe.network, self.questions["train"]
        images = len({row.image for row in train.rows})
        return {
            "network": f"MCAN, {network.layers} layers x {network.width}, {network.heads} heads, "
            f"{len(self.data.answers):,} answers",
            "data": f"{train.source}, {images:,} images",
            "train_size": len(train),
        }

    def batches(
        self, network: Trained, questions: VisualQuestions, size: int, *, noisy: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """Questions on the network's device, in their order, with noise on the regions or without."""
        section, config = self.recipe.visual_questions, network.net.config
        rows = TokenizedVisualQuestions(
            questions, network.codec, answers_of(network), max_length=section.max_length
        )
        grid = None if config.grid_size is None else (config.grid_size**2, config.region_size)
        variance = section.noise if noisy and section.noise is not None else 0.0
        collate = VisualQuestionCollate(len(answers_of(network)), variance, grid, self.recipe.prediction.seed)
        for batch in DataLoader(rows, batch_size=size, collate_fn=collate):
            yield {name: tensor.to(network.device) for name, tensor in batch.items()}

    def columns_of(self, network: Trained, key: str) -> dict[ModelKey, Columns]:
        """What the measures of a data set, "test" or "noisy", are computed from, by model."""
        test, prediction = self.questions["test"], self.recipe.prediction
        batches = self.batches(network, test, prediction.batch_size, noisy=key == "noisy")
        total = -(-len(test) // prediction.batch_size)
        parts: dict[ModelKey, list[Columns]] = {}
        for number, batch in enumerate(network.tracked(batches, f"answers ({TITLES[key].lower()})", total)):
            for model, found in answered(network, network.moved(batch), prediction, number).items():
                columns = answer_columns(*found, batch["labels"], self.recipe.report.bins)
                parts.setdefault(model, []).append(columns)
        return {model: joined(found, range(len(test))) for model, found in parts.items()}

    def measure(self, run: RunDescription, networks: Sequence[Trained]) -> VisualQuestionResults:
        """Answers the test questions, as they are and with noise, and measures the answers."""
        own = networks[-1]
        keys = ["test", *(["noisy"] if self.recipe.visual_questions.noise is not None else [])]
        table: dict[tuple[str, ModelKey], Columns] = {
            (key, model): columns
            for key in keys
            for network in networks
            for model, columns in self.columns_of(network, key).items()
        }
        return self.results_of(
            run,
            networks,
            table,
            figures,
            seed=self.recipe.report.seed,
            data=tuple(self._described(key) for key in keys),
            listings=tuple(self._listings(table)),
            samples=tuple(self._samples(networks)),
            heads=self._heads(networks) if "heads" in measured(own.net) else None,
            health=self._health(own),
        )

    def _described(self, key: str) -> DataSet:
        test, noise = self.questions["test"], self.recipe.visual_questions.noise
        words = f", Gaussian noise of variance {noise:g} on the regions" if key == "noisy" else ""
        return DataSet(
            key=key,
            title=TITLES[key],
            role="shifted" if key == "noisy" else "in_domain",
            size=len(test),
            labelled=True,
            source=f"{test.source}{words}",
            unit=self.unit,
        )

    def _listings(self, table: Mapping[tuple[str, ModelKey], Columns]) -> Iterator[Listing]:
        found = {model: columns["accuracy"] for (key, model), columns in table.items() if key == "test"}
        yield by_kind(self.questions["test"], found)

    def _samples(self, networks: Sequence[Trained]) -> Iterator[VisualQuestionSample]:
        """A fixed choice of test questions with answers and maps."""
        count = self.recipe.report.samples
        chosen = self.questions["test"].take(count) if count else self.questions["test"].at(())
        for place in range(len(chosen)):
            single = chosen.at([place])
            batches = {each.key: next(self.batches(each, single, 1)) for each in networks}
            yield sample_of(networks, batches, single, self.recipe.prediction)

    def _heads(self, networks: Sequence[Trained]) -> Heads | None:
        """Differences between the heads of the networks, and the accuracy without each."""
        own, report = networks[-1], self.recipe.report
        if not report.head_questions:
            return None
        test, size = self.questions["test"], self.recipe.prediction.batch_size
        chosen, masked = test.take(report.head_questions), test.take(report.masked_questions or 1)
        start = VisualQuestionProgram(self.build(len(own.codec), answers_of(own)))
        return measure_heads(
            networks,
            Network(on_device(start), own.folder, "deterministic", own.codec),
            lambda network: self.batches(network, chosen, size),
            lambda network: partial(self._accuracy, network, masked),
            texts=len(chosen),
            masked=len(masked) if report.masked_questions else 0,
        )

    def _accuracy(self, network: Trained, questions: VisualQuestions) -> float:
        """Accuracy of the answers at the posterior expectation."""
        total = 0.0
        for batch in self.batches(network, questions, self.recipe.prediction.batch_size):
            with torch.no_grad():
                total += self.validation_metrics(network.program, batch)["accuracy"].sum().item()
        return total / len(questions)

    def _health(self, own: Trained) -> tuple[SiteHealth, ...]:
        prediction = self.recipe.prediction
        batches = self.batches(own, self.questions["test"], prediction.batch_size)
        return health(own, map(own.moved, batches), prediction, chunk_size=prediction.chunk_size)

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
        """Answers to lines with the path of an image, or its number among the test images, a tab and a question."""
        if pairs is not None:
            raise RunError(
                f"{run}: its network reads lines with an image and a question; expected no second texts"
            )
        network = self.network(run)
        prediction = self.recipe.prediction.model_copy(update={"num_samples": num_samples, "seed": seed})
        files = self.recipe.visual_questions.images("test")

        def made() -> Iterator[dict[str, Any]]:
            for number, lines in enumerate(in_batches(texts, prediction.batch_size)):
                questions = given_questions(lines, files)
                batch = next(self.batches(network, questions, len(lines)))
                if uncertainty == "moments" and network.key == "bayesian_mean":
                    found = posterior_moments(
                        network.program, batch, num_samples=max(num_samples, 2), seed=(seed, number)
                    )
                    mean, spread = found.mean, found.std
                else:
                    mean, draws = answered(network, batch, prediction, number, dropout=False)[network.key]
                    spread = torch.zeros_like(mean) if draws is None else draws.std(dim=0)
                for place, line in enumerate(lines):
                    yield object_of(line, mean[place].cpu(), spread[place].cpu(), answers_of(network))

        return made()

    @classmethod
    def columns(cls, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, its probability and its spread."""
        return {name: answer[name] for name in ("answer", "probability", "spread")}

    @classmethod
    def answers(cls, found: Sequence[dict[str, Any]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        return answer_sheet(found), list(found)

    @classmethod
    def page(cls, results: VisualQuestionResults) -> str:
        """The report."""
        return render(results)
