"""Tasks of pretrained networks with a head: recipe to network to report, by measures of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel

from probattn.checks import shortened
from probattn.inference.posterior import Posterior
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.inference.report import DataSet, Group, ModelKey, RunDescription, Sheet, training_curves
from probattn.inference.report.evaluation import reliability_bins
from probattn.inference.report.measures import MeasureText
from probattn.metrics.functional.calibration import BinSums, calibration_error_from_sums
from probattn.models import load, program_for
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.program import HeadProgram, Program
from probattn.tasks.classification.networks import load_head, load_tokenizer
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.page import headline, render, results_sheet
from probattn.tasks.fine_tuning.recipe import Examples, HeadRecipe
from probattn.tasks.fine_tuning.results import (
    Columns,
    Listing,
    MeasuredResults,
    MeasuredScores,
    combine,
    compare,
)
from probattn.tasks.programs import (
    Data,
    Network,
    ProgramTask,
    check_finished,
    digest,
    health,
    in_batches,
    model_key,
    on_device,
    put_methods,
    quiet_loading,
)

HEALTH_BATCHES = 4
"""Batches over which the spread of the weights is averaged."""
HEALTH_CHUNK = 2
"""Draws per pass while all sites' weights are looked at: a pass holds them all."""
DIGITS = 6
"""Digits behind the point of figures in answers."""
ROOM = 160
"""Characters of a text in a table."""

TrainedHead = Network[HeadProgram]
Answer = dict[str, Any]
"""What is predicted of one example, by name."""


class Encoded(NamedTuple):
    """An example as a network reads it.

    Attributes:
        rows: one row, or one for each window of a long text.
        notes: what answers need besides, such as the places of tokens in the text.
    """

    rows: Sequence[Mapping[str, Any]]
    notes: Any = None


class Batch(NamedTuple):
    """Some examples with what a network is given of them.

    Attributes:
        examples: the examples.
        encoded: the same as the network reads them.
        tensors: the batch of all their rows, labels among them where the examples have some.
        config: the network's configuration.
    """

    examples: Examples
    encoded: Sequence[Encoded]
    tensors: Mapping[str, Tensor]
    config: PreTrainedConfig


@dataclass(frozen=True)
class HeadData(Data):
    """Encoded examples.

    Attributes:
        codec: the network's tokenizer or image processor.
    """

    codec: Any = None


class HeadTask(ProgramTask[Any, MeasuredResults, HeadData, HeadProgram]):
    """A pretrained network with a head, fine-tuned and measured by the measures of its task.

    Attributes:
        reads_with: the Auto class of what they read with.
        measures: what is measured, the most important first; of shares and numbers, with their direction.
        headings: of the table of uncertain examples, by the key of an answer.
        inputs: the keys of an answer that are what was asked.
        ranked_by: the key of an answer that says how uncertain it is.
        calibrates: whether held-out examples are predicted too, see :meth:`calibrated`.
    """

    recipe_class: ClassVar[type[HeadRecipe]]
    results_class = MeasuredResults
    no_limit = None
    no_draws = None
    reads_with: ClassVar[Any] = AutoTokenizer
    measures: ClassVar[Mapping[str, MeasureText]]
    headings: ClassVar[Mapping[str, str]]
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    ranked_by: ClassVar[str] = "entropy"
    calibrates: ClassVar[bool] = False

    @property
    @abstractmethod
    def auto(self) -> Any:
        """Transformers' Auto class of the networks; a plain class attribute where it is always the same."""

    @abstractmethod
    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Examples as a network reads them, with labels where the examples have some."""

    @abstractmethod
    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """What the measures are computed from, one row an example."""

    @abstractmethod
    def figures(self, columns: Columns) -> dict[str, float | None]:
        """The measures of some examples, and further figures that the records keep."""

    @abstractmethod
    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """What is predicted of each example; :attr:`ranked_by` is among it."""

    @abstractmethod
    def given(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """An example without label, as :meth:`predict` is given it; ``RunError`` where that cannot be."""

    def collate(self, codec: Any) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]:
        """Rows to a batch: padded by the tokenizer, labels stacked."""
        return partial(padded, codec)

    def label_names(self) -> Sequence[str] | None:
        """Names of the head's outputs; None where they are not the data's."""
        return None

    def head_options(self) -> Mapping[str, Any]:
        """Further entries of the network's configuration."""
        return {}

    def _fingerprints(self) -> Iterator[str]:
        for split, examples in self.examples.items():
            yield split
            yield from map(self.section_of_examples.fingerprint, examples)

    def codec(self) -> Any:
        """What the recipe's network reads with."""
        return load_tokenizer(self.recipe.network, self.reads_with)

    def untrained(self) -> PreTrainedModel:
        """The recipe's network with a head for the data, whose attention is its own."""
        recipe = self.recipe
        return load_head(
            self.auto, recipe.network, self.label_names(), seed=recipe.training.seed, **self.head_options()
        )

    def prepare(self, net: PreTrainedModel) -> None:
        """Sets what the network is to keep of the data, before it is converted."""

    def program_options(self) -> Mapping[str, Any]:
        """Further options of the program."""
        return {}

    def calibrated(self, columns: Columns, held_out: Columns) -> Columns:
        """Columns with what the held-out examples say about them."""
        return columns

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Further tables of the report, from the columns of the test examples by model."""
        return ()

    def bins(self, columns: Columns) -> BinSums | None:
        """Sums over bins of confidence, behind the reliability diagram; None for none."""
        return binned_sums(columns["bins"]) if "bins" in columns else None

    @cached_property
    def examples(self) -> dict[Any, list[Mapping[str, Any]]]:
        """Examples by part, read once."""
        return self.section_of_examples.load()

    @property
    def section_of_examples(self) -> Any:
        """The section of the recipe that names them."""
        return self.recipe.examples()[1]

    def sizes(self) -> Mapping[str, int]:
        """Number of examples of each part."""
        names = {"train": "training"}
        return {names.get(split, split): len(examples) for split, examples in self.examples.items()}

    def load_data(self) -> HeadData:
        """Encodes all examples, so that none is refused after training."""
        parts, codec = self.examples, self.codec()
        encoded = {split: self.encode(codec, examples) for split, examples in parts.items()}
        rows = {split: [row for each in items for row in each.rows] for split, items in encoded.items()}
        return HeadData(
            rows["train"],
            rows["validation"],
            self.collate(codec),
            {"data": digest(self._fingerprints()), "network": self.network_name},
            None,
            codec,
        )

    def program(self, *, baseline: bool = False) -> HeadProgram:
        """The recipe's network as a Pyro program; see the base class."""
        recipe = self.recipe
        data = self.data
        net = self.untrained()
        self.prepare(net)
        put_methods(net, () if baseline else self.methods, recipe, self.network_name)
        return self._program_of(net, num_data=len(data.train), **self.program_options())

    def _program_of(self, net: nn.Module, **options: Any) -> HeadProgram:
        program: Program = program_for(net, **options)
        assert isinstance(program, HeadProgram)
        return program

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Nothing beside the parts of the loss; a task may have more."""
        return {}

    def save_beside(self, folder: Path) -> None:
        """Saves what the network reads with."""
        self.data.codec.save_pretrained(folder)

    def network(self, folder: Path) -> TrainedHead:
        """Loads a trained network and what it reads with."""
        place = check_finished(folder)
        with quiet_loading():
            net = load(place)
            codec = open_pretrained(self.reads_with, place)
        return Network(on_device(self._program_of(net)), folder, model_key(net), codec)

    @property
    def network_name(self) -> str:
        """What the recipe calls its network."""
        return str(getattr(self.recipe.network, "new", None) or self.recipe.network.name)

    def words(self) -> Mapping[str, Any]:
        """Network and data, in words."""
        return {
            "network": self.network_name,
            "data": self.section_of_examples.train,
            "train_size": len(self.examples["train"]),
        }

    def restricted_recipe(self, limit: int | None, num_samples: int | None) -> Any:
        """The recipe with a lower limit of the test examples, and another number of draws."""
        name, section = self.recipe.examples()
        prediction = self.recipe.prediction
        if limit is not None:
            most = min(limit, section.limits.test or limit)
            section = section.model_copy(update={"limits": section.limits.model_copy(update={"test": most})})
        if num_samples is not None:
            prediction = prediction.model_copy(update={"num_samples": num_samples})
        return self.recipe.model_copy(update={name: section, "prediction": prediction})

    def batches(
        self, network: TrainedHead, encoded: Sequence[Encoded], examples: Examples
    ) -> Iterator[Batch]:
        """Batches of encoded examples, in order."""
        collate = self.collate(network.codec)
        for places in in_batches(range(len(examples)), self.recipe.prediction.batch_size):
            parts = [encoded[place] for place in places]
            rows = [row for each in parts for row in each.rows]
            yield Batch([examples[place] for place in places], parts, collate(rows), network.net.config)

    def completed(self, network: TrainedHead, batch: Batch) -> Batch:
        """A batch with what the network itself adds before it is measured, such as a text that it generates."""
        return batch

    def reading(
        self, program: HeadProgram, tensors: Mapping[str, Tensor]
    ) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """What is predicted of a batch, as a function of its inputs: the program's prediction, or a part of it."""
        return program

    def posteriors(
        self, network: TrainedHead, tensors: Mapping[str, Tensor], number: int
    ) -> dict[ModelKey, Posterior]:
        """Predictions of a batch by model: of latent attention those of draws, and those at its expectation."""
        program, prediction = network.program, self.recipe.prediction
        inputs = {name: value.to(network.device) for name, value in program.inputs(tensors).items()}
        law: dict[str, Any] = {"link": program.link, "noise": getattr(program, "noise", None)}
        read = self.reading(program, tensors)
        if network.key != "bayesian_mean":
            with torch.no_grad():
                return {network.key: Posterior(read(inputs)[None].cpu(), **law)}
        drawn = posterior_predict(
            read,
            inputs,
            prediction.num_samples,
            seed=(prediction.seed, number),
            chunk_size=prediction.chunk_size,
        )
        expected = Posterior(posterior_expectation(read, inputs)[None].cpu(), **law)
        return {"bayesian_mean": Posterior(drawn.logits.cpu(), **law), "bayesian_expectation": expected}

    def measure(self, run: RunDescription, networks: Sequence[TrainedHead]) -> MeasuredResults:
        """Predicts the test examples with every network and measures what came out."""
        report, own = self.recipe.report, networks[-1]
        table: dict[ModelKey, Columns] = {}
        answers: list[Answer] = []
        for network in networks:
            found, answers = self._predicted(network, "test")
            held = self._predicted(network, "validation")[0] if self.calibrates else {}
            table |= {
                key: self.calibrated(columns, held[key]) if held else columns
                for key, columns in found.items()
            }
        test = DataSet(
            key="test",
            title=shortened(f"{Path(self.section_of_examples.train).stem} (test)", 60),
            role="in_domain",
            size=len(self.examples["test"]),
            labelled=True,
            source=self.section_of_examples.test or self.section_of_examples.train,
            unit=self.unit,
        )
        return MeasuredResults(
            kind=str(self.section),
            run=run,
            data=(test,),
            scores=tuple(self._scores(model, columns) for model, columns in table.items()),
            differences=compare(
                {(test.key, model): columns for model, columns in table.items()},
                self._compared,
                resamples=report.resamples,
                level=report.level,
                seed=self.recipe.prediction.seed,
            ),
            listings=(*self.listings(table), *self._uncertain(answers)),
            health=self._health(own),
            curves=tuple(curve for each in networks for curve in training_curves(each.records, each.key)),
        )

    def _compared(self, columns: Columns) -> dict[str, float | None]:
        """The figures that are measures of the task."""
        return {name: value for name, value in self.figures(columns).items() if name in self.measures}

    def _scores(self, model: ModelKey, columns: Columns) -> MeasuredScores:
        sums = self.bins(columns)
        return MeasuredScores(
            model=model,
            data="test",
            values=self.figures(columns),
            reliability=() if sums is None else reliability_bins(sums),
        )

    def _predicted(self, network: TrainedHead, split: str) -> tuple[dict[ModelKey, Columns], list[Answer]]:
        """Columns by model, and the answers of the network itself, in the order of the examples."""
        examples = self.examples[split]
        encoded = self.encode(network.codec, examples)
        order = sorted(range(len(examples)), key=lambda place: _length(encoded[place]))  # little padding
        plain = self.batches(network, [encoded[row] for row in order], [examples[row] for row in order])
        batches = (self.completed(network, batch) for batch in plain)
        parts: dict[ModelKey, list[Columns]] = {}
        answers: list[Answer] = []
        total = -(-len(examples) // self.recipe.prediction.batch_size)
        for number, batch in enumerate(network.tracked(batches, f"predictions ({split})", total)):
            for key, posterior in self.posteriors(network, batch.tensors, number).items():
                parts.setdefault(key, []).append(self.record(posterior, batch))
                if key == network.key:
                    answers += self.answer(posterior, batch)
        back = torch.tensor(order).argsort()
        columns: dict[ModelKey, Columns] = {
            key: {name: torch.cat([part[name] for part in found])[back] for name in found[0]}
            for key, found in parts.items()
        }
        return columns, [answers[place] for place in back.tolist()]

    def _uncertain(self, answers: Sequence[Answer]) -> Iterator[Listing]:
        examples, key = self.examples["test"], self.ranked_by
        ranked = sorted(range(len(answers)), key=lambda place: -answers[place][key])
        shown = ranked[: self.recipe.report.uncertain]
        if shown:
            truths = [self.truth(examples[place]) for place in shown]
            sheet = self.sheet(
                [
                    answers[place] | ({} if truth is None else {"truth": truth})
                    for place, truth in zip(shown, truths, strict=True)
                ]
            )
            yield Listing(
                title=f"The most uncertain {self.unit}",
                headings=sheet.headings,
                rows=tuple(tuple(shortened(cell, ROOM) for cell in row) for row in sheet.groups[0].rows),
                words=sheet.words,
                about=f"In the order of: {self.headings[key]}.",
            )

    @classmethod
    def sheet(cls, answers: Sequence[Answer]) -> Sheet:
        """Answers as a table: those of :attr:`headings` that they have, words before numbers."""
        keys = [key for key in cls.headings if answers and key in answers[0]]
        numbers = [key for key in keys if isinstance(answers[0][key], float)]
        keys = [key for key in keys if key not in numbers] + numbers
        rows = tuple(
            tuple(f"{each[key]:.3f}" if key in numbers else str(each[key]) for key in keys)
            for each in answers
        )
        titles = tuple(cls.headings[key] for key in keys)
        return Sheet(titles, (Group("", rows),), words=len(keys) - len(numbers))

    @abstractmethod
    def truth(self, example: Mapping[str, Any]) -> str | None:
        """The label of an example in words, as answers show theirs; None for none."""

    def _health(self, own: TrainedHead) -> Any:
        record = conversion(own.net)
        if record is None or record.method is None:
            return ()
        examples = self.examples["test"]
        encoded = self.encode(own.codec, examples[: HEALTH_BATCHES * self.recipe.prediction.batch_size])
        batches = islice(self.batches(own, encoded, examples[: len(encoded)]), HEALTH_BATCHES)
        inputs = [own.program.inputs(batch.tensors) for batch in batches]
        prediction = self.recipe.prediction
        return health(
            own,
            inputs,
            prediction,
            record.method.kl_reduction,
            prediction.chunk_size or HEALTH_CHUNK,
        )

    @classmethod
    def headline(cls, results: MeasuredResults) -> str:
        """The main result, in one line."""
        return headline(results, cls.measures)

    @classmethod
    def table(cls, results: MeasuredResults) -> Sheet:
        """The results for a terminal."""
        return results_sheet(results, cls.measures)

    @classmethod
    def page(cls, results: MeasuredResults) -> str:
        """The report: one HTML page that needs nothing but itself."""
        return render(results, cls.measures, cls.unit)

    @classmethod
    def summary(cls, results: MeasuredResults) -> dict[str, Any]:
        """The headline and the comparisons of the run's own network, for programs."""
        compared = [
            {
                **difference.model_dump(exclude={"seeds", "resamples"}),
                "verdict": results.verdict(difference, cls.measures[difference.measure]),
            }
            for difference in results.differences
            if difference.model == results.compared
        ]
        return {"headline": cls.headline(results), "seeds": results.seeds, "comparisons": compared}

    @classmethod
    def combine(cls, results: Mapping[str, MeasuredResults]) -> MeasuredResults:
        """The comparison of several runs over their seeds, by the path of their folders."""
        return combine(results)

    def predict(
        self,
        run: Path,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        num_samples: int = 20,
        seed: int = 0,
    ) -> Iterator[Answer]:
        """Answers for texts, which are read and answered batch by batch; see the base class."""
        needs_pair = self.input_columns()[1] is not None
        if needs_pair and pairs is None:
            raise RunError(
                f"{run}: its network reads pairs of texts; expected a second text for each, got none"
            )
        if pairs is not None and not needs_pair:
            raise RunError(f"{run}: its network reads single texts; expected no second texts")
        prediction = self.recipe.prediction.model_copy(update={"num_samples": num_samples, "seed": seed})
        task = type(self)(self.recipe.model_copy(update={"prediction": prediction}))
        return task._answered(task.network(run), texts, pairs)

    def _answered(
        self, network: TrainedHead, texts: Iterable[str], pairs: Iterable[str] | None
    ) -> Iterator[Answer]:
        rows = ((text, None) for text in texts) if pairs is None else zip(texts, pairs, strict=True)
        for number, part in enumerate(in_batches(rows, self.recipe.prediction.batch_size)):
            examples = [self.given(text, pair) for text, pair in part]
            encoded = self.encode(network.codec, examples)
            batch = self.completed(network, next(self.batches(network, encoded, examples)))
            yield from self.answer(self.posteriors(network, batch.tensors, number)[network.key], batch)

    @classmethod
    def answers(cls, found: Sequence[Answer]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        return cls.sheet(found), list(found)

    @classmethod
    def columns(cls, answer: Answer) -> dict[str, Any]:
        """What was predicted, by name, without the inputs."""
        return {
            name: round(value, DIGITS) if isinstance(value, float) else value
            for name, value in answer.items()
            if name not in cls.inputs
        }


def padded(codec: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Rows of a tokenizer as a batch, padded behind; labels of tokens by -100, others are stacked."""
    inputs = [{name: row[name] for name in row if name in codec.model_input_names} for row in rows]
    batch = dict(codec.pad(inputs, padding_side="right", return_tensors="pt"))
    length = batch["input_ids"].shape[1]
    for name in rows[0].keys() - inputs[0].keys():
        values = [row[name] for row in rows]
        if all(isinstance(row[name], list) and len(row[name]) == len(row["input_ids"]) for row in rows):
            values = [[*value, *[-100] * (length - len(value))] for value in values]
        batch[name] = torch.tensor(values)
    return batch


def output_names(config: PreTrainedConfig) -> list[str]:
    """Names of a head's outputs, in order."""
    names = cast(Mapping[int, str], config.id2label)
    return [names[index] for index in range(len(names))]


def bin_columns(confidence: Tensor, correct: Tensor, owner: Tensor, size: int, bins: int) -> Tensor:
    """Sums over bins of confidence by example, float64 ``[N, M, 3]``: number, right ones, confidence.

    Args:
        confidence: of K predictions, ``[K]``.
        correct: whether each is right, ``[K]``.
        owner: the example that each belongs to, int64 ``[K]``.
        size: N.
        bins: M.
    """
    edges = torch.linspace(0, 1, bins + 1)[1:-1]
    index = torch.bucketize(confidence.float(), edges, right=True)
    values = torch.stack([torch.ones_like(confidence), correct.to(confidence), confidence], dim=-1).double()
    sums = values.new_zeros(size * bins, 3)
    sums.index_add_(0, owner * bins + index, values)
    return sums.view(size, bins, 3)


def binned_sums(columns: Tensor) -> BinSums:
    """The sums over examples of what :func:`bin_columns` gives."""
    counts, correct, confidence = columns.sum(dim=0).unbind(dim=-1)
    return BinSums(counts.long(), correct.long(), confidence)


def calibration_error(columns: Tensor) -> float:
    """Expected calibration error of what :func:`bin_columns` gives."""
    return calibration_error_from_sums(binned_sums(columns), "l1").item()


def _length(encoded: Encoded) -> int:
    return max((len(row.get("input_ids", ())) for row in encoded.rows), default=0)
