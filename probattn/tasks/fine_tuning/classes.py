"""What tasks share whose network chooses one of several classes: their measures, and decisions by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from probattn.inference.last_layer import FITTED, Features, last_features, last_layer
from probattn.inference.posterior import Posterior
from probattn.report import DataSet, Evaluation, ModelKey
from probattn.report.bootstrap import Columns
from probattn.report.columns import ClassMeasures, class_columns
from probattn.report.measures import CLASS_MEASURES, MeasureText
from probattn.report.record import DrawsSource
from probattn.tasks.answering import Deciding, Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.encoding import Answer, Batch, output_names
from probattn.tasks.fine_tuning.predictor import Predictor
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.fine_tuning.task import HeadTask
from probattn.tasks.held_out import HeldOut

MEASURES: Mapping[str, MeasureText] = {
    name: CLASS_MEASURES[name]
    for name in ("accuracy", "nll", "brier", "ece", "overconfidence", "aurc", "pavpu")
}

SOURCES: Mapping[ModelKey, DrawsSource] = {"bayesian_mean": "posterior", "bayesian_moments": "moments"}
"""Where draws come from, by model."""


def class_record(posterior: Posterior, batch: Batch) -> Columns:
    """Columns of predicted classes ``[B, C]``, with the labels int64 ``[B]`` of the batch where it has some."""
    draws = posterior.probabilities.double()
    labels = batch.tensors.get("labels")
    return class_columns(draws.mean(dim=0), draws if len(draws) > 1 else None, labels)


def class_figures(task: HeadTask, columns: Columns) -> dict[str, float | None]:
    """The measures of some examples, with the bins of the recipe."""
    return ClassMeasures(task.recipe.report.bins).figures(columns)


def class_evaluation(
    task: HeadTask, table: Mapping[tuple[str, ModelKey], Columns], data: Sequence[DataSet]
) -> Evaluation:
    """Scores with their curves, and differences to the baseline."""
    measures = ClassMeasures(task.recipe.report.bins)
    return task.evaluation_of(
        table,
        measures.figures,
        data,
        curves=measures.curves,
        sources={(key, model): SOURCES[model] for key, model in table if model in SOURCES},
        seed=task.recipe.prediction.seed,
    )


class ClassesDeciding(Deciding):
    """Decisions by the validation examples and those that are measured."""

    task: HeadTask

    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """The validation examples and those that are measured; see the base class."""
        task, section = self.task, self.task.section_of_examples
        trained = {section.identity(row) for split in ("train", "validation") for row in task.examples[split]}
        title, source = f"{Path(section.train).name} (validation)", str(section.validation or section.train)
        data = {"validation": _held_out(task.examples["validation"], title, "validation", source)}
        for key in task.measured_splits:
            described = task.described(key)
            data[key] = _held_out(task.examples[key], described.title, described.role, described.source)
        if file is not None:
            data["test"] = _held_out(section.read_examples(file, "test"), file, "in_domain", file)
        test = data["test"]
        shared = [
            row for row, example in enumerate(test.examples or ()) if section.identity(example) in trained
        ]
        return {**data, "test": replace(test, seen=shared)}

    def predict(self, run: Path, inputs: HeldOut, drawing: Drawing) -> Iterator[Answer]:
        """Answers for held-out examples; see the base class."""
        return self.task.answering.of_examples(run, inputs.examples or (), drawing)

    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """What reads the features of examples; see the base class."""
        task = self.task
        if task.label_names() is None:  # a choice is among several inputs
            raise RunError(
                f"{run}: expected a run that gives a class to each text or image, got one of {task.section}"
            )
        network = task.network(run)
        names = output_names(network.net.config)

        def features(inputs: HeldOut | None) -> Features:
            if inputs is None:
                examples, title = self._training(run, names), f"training {task.unit}"
            else:
                section, title = task.section_of_examples, inputs.title
                rows = inputs.examples or [section.unlabelled(text, None) for text in inputs.texts]
                examples = [{key: row[key] for key in row if key != "label"} for row in rows]
            total = -(-len(examples) // task.recipe.prediction.batch_size)
            batches = network.tracked(
                Predictor(task, network).batches(examples), f"features of {title}", total
            )
            moved = (
                {name: tensor.to(network.device) for name, tensor in batch.tensors.items()}
                for batch in batches
            )
            return last_features(network.program, moved, last_layer(network.net, len(names)))

        return features

    def _training(self, run: Path, names: Sequence[str]) -> Examples:
        """A fixed choice of the training examples, of which a network knows the classes ``names``."""
        task = self.task
        if list(names) != list(task.label_names() or ()):
            raise RunError(
                f"{run}: expected training {task.unit} of the {len(names)} classes that its network learned, got "
                "others; they have changed since: train again"
            )
        training = task.examples["train"]
        rows = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))[:FITTED]
        return [training[row] for row in rows.sort().values.tolist()]


def _held_out(examples: Examples, title: str, role: str, source: str) -> HeldOut:
    return HeldOut(
        title=title,
        role=role,
        source=source,
        texts=[str(example.get("name", example.get("text"))) for example in examples],
        pairs=None,
        labels=[str(example["label"]) for example in examples] if "label" in examples[0] else None,
        examples=examples,
    )
