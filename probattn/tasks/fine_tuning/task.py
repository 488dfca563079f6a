"""Base class of tasks that fine-tune a pretrained network with a task head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from probattn.checks import shortened
from probattn.data.task import role_of
from probattn.files.durable import digest
from probattn.inference.posterior import Posterior
from probattn.models import load, program_for
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.program import HeadProgram, Program
from probattn.report import (
    DataSet,
    Evaluation,
    Group,
    Listing,
    ModelKey,
    Results,
    Role,
    RunDescription,
    Sheet,
    WordsExample,
)
from probattn.report.bootstrap import Columns
from probattn.report.columns import entropy_record
from probattn.report.measures import within
from probattn.tasks.answering import Deciding, write_predictions
from probattn.tasks.classification.networks import load_head, load_tokenizer
from probattn.tasks.fine_tuning.answering import HeadAnswering, HeadDeciding
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded, padded
from probattn.tasks.fine_tuning.predictor import Predictor, TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.measured import joined
from probattn.tasks.measures import binned_reliability
from probattn.tasks.networks import Network, check_finished, model_key, on_device, put_methods, quiet_loading
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.topics import TopicData

EXPLAINED = 4
"""Most uncertain examples whose words are shown."""
ROOM = 160
"""Characters of a text in a table."""
ROLES: Mapping[str, Role] = {"test": "in_domain", "shifted": "shifted", "out_of_domain": "out_of_domain"}
"""Splits that are measured, with their role in the report."""
ENTROPIES = {"entropy": "Entropy", "mutual_information": "Mutual information"}
"""Headings of the uncertainty of an answer."""
UNCERTAINTY = {"probability": "Probability", **ENTROPIES}
"""The same of an answer with one probability."""


class HeadTask(ProgramTask[Any, Results, Data, HeadProgram]):
    """Base class of tasks that fine-tune a pretrained network with a task head (output layer).

    A subclass names its recipe, the Auto class of its networks and its measures, encodes examples, and computes
    columns, measures and answers.

    Attributes:
        reads_with: Auto class of the tokenizer or image processor.
        headings: headings of the table of uncertain examples, by the key of an answer.
        inputs: keys of an answer that hold the input.
        ranked_by: key of an answer that holds its uncertainty.
        calibrates: whether validation examples are predicted too, see :meth:`calibrated`.
        guided: whether predictions of labelled examples depend on the labels, such as tokens predicted from the true
            ones.
        decides: class that decides which predictions to accept; None if there is none.
        cluster: key by which examples are grouped into the clusters that the bootstrap draws, and a noun for the
            clusters in the plural; None if examples are independent.
    """

    reads_with: ClassVar[Any] = AutoTokenizer
    headings: ClassVar[Mapping[str, str]]
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    ranked_by: ClassVar[str] = "entropy"
    calibrates: ClassVar[bool] = False
    guided: ClassVar[bool] = False
    decides: ClassVar[type[HeadDeciding] | None] = None
    cluster: ClassVar[tuple[str, str] | None] = None

    @property
    @abstractmethod
    def auto(self) -> Any:
        """The Hugging Face Auto class of the networks; a subclass may define it as a plain class attribute."""

    @abstractmethod
    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Encodes examples for a network, with labels if the examples have labels."""

    @abstractmethod
    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of a batch, from which the measures are computed, one row per example."""

    @abstractmethod
    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the examples in ``columns``, and further numbers for the results."""

    @abstractmethod
    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """Prediction of each example as a dictionary, which contains :attr:`ranked_by`."""

    @abstractmethod
    def truth(self, example: Mapping[str, Any]) -> str | None:
        """The label of an example, as text; None if there is none."""

    # Data and networks

    def collate(self, codec: Any) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]:
        """Function that makes a batch of rows: inputs padded by the tokenizer, labels stacked."""
        return partial(padded, codec)

    def label_names(self) -> Sequence[str] | None:
        """Names of the network's outputs; None if the data do not determine them."""
        return None

    def head_options(self) -> Mapping[str, Any]:
        """Further entries of the network's configuration."""
        return {}

    def prepare(self, net: PreTrainedModel) -> None:
        """Stores properties of the data in the network, before it is converted."""

    @cached_property
    def examples(self) -> dict[Any, list[Mapping[str, Any]]]:
        """Examples by split, read once."""
        return self.section_of_examples.load()

    def encoded(self, network: TrainedHead, examples: Examples) -> list[Encoded]:
        """Encodes examples for a trained network."""
        return self.encode(network.codec, examples)

    def shortest_first(self, examples: Examples, encoded: Sequence[Encoded]) -> list[int]:
        """Indices of the examples in order of input length, so that batches need little padding."""
        lengths = [max((len(row.get("input_ids", ())) for row in item.rows), default=0) for item in encoded]
        return sorted(range(len(examples)), key=lengths.__getitem__)

    @property
    def section_of_examples(self) -> Any:
        """The section of the recipe that describes the examples."""
        return self.recipe.examples()[1]

    def sizes(self) -> Mapping[str, int]:
        """Number of examples of each split."""
        names = {"train": "training"}
        return {names.get(split, split): len(examples) for split, examples in self.examples.items()}

    def load_data(self) -> Data:
        """Encodes all examples, so examples that cannot be used raise before training."""
        examples, codec = self.examples, self.codec()  # in this order, so that bad data are named first
        encoded = {split: self.encode(codec, rows) for split, rows in examples.items()}
        rows = {split: [row for item in items for row in item.rows] for split, items in encoded.items()}
        return Data(
            rows["train"],
            rows["validation"],
            self.collate(codec),
            {"data": digest(self.fingerprints()), "network": self.network_name},
            None,
            codec,
        )

    def fingerprints(self) -> Iterator[str]:
        """Texts that identify the data, to check that a resumed run has the same data."""
        for split, examples in self.examples.items():
            yield split
            yield from map(self.section_of_examples.fingerprint, examples)

    def codec(self) -> Any:
        """The tokenizer or image processor of the recipe's network."""
        return load_tokenizer(self.recipe.network, self.reads_with)

    def untrained(self) -> PreTrainedModel:
        """The recipe's network with a head for the data, before attention methods are applied."""
        recipe = self.recipe
        return load_head(
            self.auto, recipe.network, self.label_names(), seed=recipe.training.seed, **self.head_options()
        )

    def program(self, *, baseline: bool = False) -> HeadProgram:
        """The recipe's network as a Pyro program; see :meth:`ProgramTask.program`."""
        data = self.data
        net = self.untrained()
        self.prepare(net)
        put_methods(net, () if baseline else self.methods, self.recipe, self.network_name)
        return self.program_of(net, num_data=len(data.train), **self.program_options())

    def program_of(self, net: nn.Module, **options: Any) -> HeadProgram:
        """The program of a network with its head."""
        program: Program = program_for(net, **options)
        assert isinstance(program, HeadProgram)
        return program

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """No metrics besides the terms of the loss; a subclass may add some."""
        return {}

    def save_beside(self, program: HeadProgram, folder: Path) -> None:
        """Saves the tokenizer or image processor."""
        self.data.codec.save_pretrained(folder)

    def network(self, folder: Path) -> TrainedHead:
        """Loads a trained network and its tokenizer or image processor."""
        path = check_finished(folder)
        with quiet_loading():
            net = load(path)
            codec = open_pretrained(self.reads_with, path)
        return Network(on_device(self.program_of(net)), folder, model_key(net), codec)

    @property
    def network_name(self) -> str:
        """Name of the network in the recipe."""
        return str(getattr(self.recipe.network, "new", None) or self.recipe.network.name)

    def words(self) -> Mapping[str, Any]:
        """Descriptions of network and data for the report."""
        return {
            "network": self.network_name,
            "data": self.section_of_examples.train,
            "train_size": len(self.examples["train"]),
        }

    # Predictions and their measures

    @property
    def answering(self) -> HeadAnswering:
        """Prediction of inputs of users."""
        return HeadAnswering(self)

    @property
    def deciding(self) -> Deciding | str:
        """Decisions of :mod:`probattn.triage`, calibrated with the validation and the evaluated examples."""
        return super().deciding if self.decides is None else self.decides(self)

    def reading(
        self, program: HeadProgram, tensors: Mapping[str, Tensor]
    ) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Function from a batch's inputs to the prediction: the program's output, or the part of it that is used."""
        return program

    def completed(self, network: TrainedHead, batch: Batch) -> Batch:
        """A batch with outputs that the network generates before they are measured, such as texts."""
        return batch

    def record_unlabelled(self, posterior: Posterior, batch: Batch) -> Columns:
        """The columns of :meth:`record` that need no labels, for out-of-domain examples."""
        return {}

    @property
    def detects(self) -> bool:
        """Whether the detection of out-of-domain data by the uncertainty is evaluated."""
        return len(self.measured_splits) > 1

    def calibrated(self, columns: Columns, held_out: Columns) -> Columns:
        """Columns with quantities that were fitted to the validation examples, such as stretched intervals."""
        return columns

    def evaluation(
        self, table: Mapping[tuple[str, ModelKey], Columns], data: Sequence[DataSet]
    ) -> Evaluation:
        """Scores from columns by data set and model, and differences to the baseline."""

        def figures(columns: Columns) -> dict[str, float | None]:
            return self.figures(columns) if columns.keys() != {"uncertainty"} else {}

        def curves(columns: Columns) -> dict[str, Any]:
            entropies = columns.get("uncertainty") if self.ranked_by == "entropy" else None
            entropy = {} if entropies is None else {"entropy": entropy_record(entropies)}
            return {**binned_reliability(columns), **entropy}

        return self.evaluation_of(
            table, figures, data, curves=curves, seed=self.recipe.prediction.seed, clusters=self.clusters
        )

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Further tables of the report, from columns of the test examples by model."""
        return ()

    def explained(self, network: TrainedHead, example: Mapping[str, Any]) -> WordsExample | None:
        """Words that support or oppose an example's answer; None for tasks without a single answer per example."""
        return None

    def measure(self, run: RunDescription, networks: Sequence[TrainedHead]) -> Results:
        """Predicts the test examples with every network and measures the predictions."""
        table: dict[tuple[str, ModelKey], Columns] = {}
        answers: dict[str, list[Answer]] = {}
        for network in networks:
            predictor = Predictor(self, network)
            validation = (
                predictor.columns(self.examples["validation"], "validation")[0] if self.calibrates else {}
            )
            for key in self.measured_splits:
                labelled = key != "out_of_domain"
                examples = self.examples[key]
                by_model, answers[key] = predictor.columns(examples, key, labelled=labelled)
                if self.detects and labelled and self.guided:
                    by_model = self._with_answers_alone(by_model, predictor, examples, key)
                for model, columns in by_model.items():
                    if not validation or not labelled:
                        table[key, model] = columns
                    elif model in validation:
                        table[key, model] = self.calibrated(columns, validation[model])
        test = {model: columns for (key, model), columns in table.items() if key == "test"}
        data = tuple(self.described(key) for key in self.measured_splits)
        self.write_predictions(networks[-1].folder, answers)
        return self.results(
            run,
            networks,
            self.evaluation(table, data),
            data=data,
            listings=(*self.listings(test), *self._shown(answers["test"], test[networks[-1].key])),
            words=tuple(self._explained(networks[-1], answers["test"])),
            classes=tuple(self.label_names() or ()),
        )

    def write_predictions(self, run: Path, answers: Mapping[str, Sequence[Answer]]) -> None:
        """Writes split, input, true label and answer of every evaluated example into the run's folder."""
        write_predictions(run, self._prediction_rows(answers), self.inputs)

    def _prediction_rows(self, answers: Mapping[str, Sequence[Answer]]) -> Iterator[Mapping[str, Any]]:
        for key, rows in answers.items():
            for example, answer in zip(self.examples[key], rows, strict=True):
                inputs = {name: answer[name] for name in self.inputs if name in answer}
                truth = None if key == "out_of_domain" else self.truth(example)
                yield {"data": key, **inputs, "true": truth or "", **self.answering.columns(answer)}

    def _with_answers_alone(
        self, by_model: dict[ModelKey, Columns], predictor: Predictor, examples: Examples, key: str
    ) -> dict[ModelKey, Columns]:
        """Columns with the uncertainty of answers that are made without the labels, as those of out-of-domain data."""
        inputs = [{name: row[name] for name in row if name != "target"} for row in examples]
        alone, _ = predictor.columns(inputs, f"{key}, without labels", labelled=False)
        return {model: {**columns, **alone[model]} for model, columns in by_model.items() if model in alone}

    @property
    def measured_splits(self) -> list[str]:
        """Names of the evaluated splits."""
        return [key for key in self.examples if role_of(key) in ROLES]

    @property
    def clusters(self) -> dict[str, list[str]] | None:
        """Cluster of each evaluated example, by split; None if examples are independent."""
        return {key: self._clusters(key) for key in self.measured_splits} if self.cluster else None

    def _clusters(self, key: str) -> list[str]:
        """What each example of a split shares with others; nothing where examples are independent."""
        return [] if self.cluster is None else [example[self.cluster[0]] for example in self.examples[key]]

    def described(self, key: str) -> DataSet:
        """Description of an evaluated split for the report."""
        section = self.section_of_examples
        other = None if key == "test" else getattr(section, key)
        name = other or section.train
        return DataSet(
            key=key,
            title=shortened(f"{Path(name).name} (test)" if key != "out_of_domain" else Path(name).name, 60),
            role=ROLES[role_of(key)],
            size=len(self.examples[key]),
            labelled=key != "out_of_domain",
            source=other or section.test or section.train,
            unit=self.unit,
            cluster=self.cluster[1] if self.cluster else "",
            clusters=len(set(self._clusters(key))) or None,
        )

    def _explained(self, network: TrainedHead, answers: Sequence[Answer]) -> Iterator[WordsExample]:
        shown = self._ranked(answers)[: min(EXPLAINED, self.recipe.report.uncertain)]
        records = (self.explained(network, self.examples["test"][row]) for row in shown)
        yield from (record for record in records if record is not None)

    def _ranked(self, answers: Sequence[Answer]) -> list[int]:
        """Rows of the answers, the most uncertain first."""
        return sorted(range(len(answers)), key=lambda row: -answers[row][self.ranked_by])

    def _shown(self, answers: Sequence[Answer], columns: Columns) -> Iterator[Listing]:
        """The most uncertain examples, and of those with one right answer the most confident mistakes."""
        rows = self._ranked(answers)
        yield from self._listed(
            answers, rows, "uncertain", f"In the order of: {self.headings[self.ranked_by]}."
        )
        if "right" in columns and "confidence" in columns:
            order = columns["confidence"].argsort(descending=True, stable=True)
            wrong = order[~columns["right"][order].bool()].tolist()
            yield from self._listed(
                answers, wrong, "confident mistakes among the", "In the order of: Probability."
            )

    def _listed(
        self, answers: Sequence[Answer], rows: Sequence[int], title: str, about: str
    ) -> Iterator[Listing]:
        rows = rows[: self.recipe.report.uncertain]
        if rows:
            truths = [self.truth(self.examples["test"][row]) for row in rows]
            table = self.table(
                [
                    answers[row] | ({} if truth is None else {"truth": truth})
                    for row, truth in zip(rows, truths, strict=True)
                ]
            )
            yield Listing(
                title=f"The most {title} {self.unit}",
                headings=table.headings,
                rows=tuple(tuple(shortened(cell, ROOM) for cell in row) for row in table.groups[0].rows),
                words=table.words,
                about=about,
            )

    @classmethod
    def table(cls, answers: Sequence[Answer]) -> Sheet:
        """Table of answers, with the columns of :attr:`headings` that occur, words before numbers."""
        keys = [key for key in cls.headings if answers and key in answers[0]]
        numbers = [key for key in keys if isinstance(answers[0][key], float)]
        keys = [key for key in keys if key not in numbers] + numbers
        rows = tuple(
            tuple(f"{answer[key]:.3f}" if key in numbers else str(answer[key]) for key in keys)
            for answer in answers
        )
        titles = tuple(cls.headings[key] for key in keys)
        return Sheet(titles, (Group("", rows),), words=len(keys) - len(numbers))

    @classmethod
    def answer_sheet(cls, answers: Sequence[Answer]) -> Sheet:
        """Table of answers to inputs of users, for a terminal."""
        return cls.table(answers)

    def topic_data(self, networks: Sequence[TrainedHead]) -> TopicData:
        """Test examples for the topics of the report."""
        test, head_measure = self.examples["test"], self.head_measure()

        def batches(network: TrainedHead, examples: Examples) -> Iterator[Mapping[str, Tensor]]:
            return (
                network.program.inputs(batch.tensors) for batch in Predictor(self, network).batches(examples)
            )

        return TopicData(
            take=lambda number: test[:number],
            batches=batches,
            start=self._start,
            report=self.recipe.report,
            prediction=self.recipe.prediction,
            accuracy=None if head_measure is None else self._head_accuracy,
            measure="" if head_measure is None else within(self.measures[head_measure].title),
        )

    def _start(self) -> HeadProgram | None:
        """The program of the network before training; None where it cannot be loaded any more."""
        try:
            net = self.untrained()
            self.prepare(net)
            return self.program_of(net)
        except ValueError:  # RunError, DataError or RecipeError
            return None

    def _head_accuracy(self, network: TrainedHead, examples: Examples) -> Callable[[], float]:
        """What measures a network on examples by :meth:`head_measure`, at the posterior expectation."""
        predictor = Predictor(self, network)
        ordered, order = predictor.ordered(examples)
        batches = list(ordered)

        def accuracy() -> float:
            columns = [self.record(predictor.expected(batch), batch) for batch in batches]
            return self.figures(joined(columns, order))[str(self.head_measure())] or 0.0

        return accuracy

    def drawing(self, num_samples: int, seed: int) -> Self:
        """The same task with another number of draws and another seed."""
        prediction = self.recipe.prediction.model_copy(update={"num_samples": num_samples, "seed": seed})
        task = type(self)(self.recipe.model_copy(update={"prediction": prediction}))
        if "examples" in vars(self):
            task.examples = self.examples
        return task
