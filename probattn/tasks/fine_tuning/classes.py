"""What tasks share whose network chooses one of several classes: their measures, and decisions by them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from probattn.data import DataWarning
from probattn.inference.laplace import FITTED, Features
from probattn.inference.posterior import Posterior
from probattn.report import DataSet, Evaluation, ModelKey
from probattn.report.bootstrap import Columns
from probattn.report.columns import THRESHOLDS, ClassMeasures, class_columns
from probattn.report.measures import CLASS_MEASURES, MeasureText
from probattn.report.record import DrawsSource
from probattn.tasks.answering import DIGITS
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.answering import HeadDeciding
from probattn.tasks.fine_tuning.encoding import Answer, Batch
from probattn.tasks.fine_tuning.predictor import Predictor, TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.fine_tuning.task import HeadTask
from probattn.tasks.held_out import ClassAnswer, HeldOut, named
from probattn.tasks.networks import output_names

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


def class_answers(posterior: Posterior, batch: Batch) -> list[Answer]:
    """The most probable class of each example, its probability and those of all, and how uncertain they are."""
    names, mean = output_names(batch.config), posterior.mean_probabilities
    return [
        {
            "label": names[int(mean[row].argmax())],
            "probability": mean[row].max().item(),
            "probabilities": {
                name: round(p, DIGITS) for name, p in zip(names, mean[row].tolist(), strict=True)
            },
            "entropy": posterior.entropy[row].item(),
            "mutual_information": posterior.mutual_information[row].item(),
        }
        for row in range(len(batch.examples))
    ]


def class_figures(task: HeadTask, columns: Columns) -> dict[str, float | None]:
    """The measures of some examples, as the recipe asks for them."""
    return _measures(task).figures(columns)


def class_evaluation(
    task: HeadTask, table: Mapping[tuple[str, ModelKey], Columns], data: Sequence[DataSet]
) -> Evaluation:
    """Scores with their curves, and differences to the baseline; a task's further figures need labels."""
    measures = _measures(task)
    return task.evaluation_of(
        table,
        lambda columns: (task.figures if "label" in columns else measures.figures)(columns),
        data,
        curves=measures.curves,
        sources={
            (key, model): SOURCES.get(model, "dropout" if "information" in columns else None)
            for (key, model), columns in table.items()
        },
        seed=task.recipe.prediction.seed,
        clusters=task.clusters,
    )


def _measures(task: HeadTask) -> ClassMeasures:
    report = task.recipe.report
    further = getattr(report, "measures", ())
    classes = len(task.label_names() or ()) if further else 0
    return ClassMeasures(report.bins, getattr(report, "thresholds", THRESHOLDS), further, classes)


class ClassesDeciding(HeadDeciding):
    """Decisions about one class for each input."""

    record = ClassAnswer

    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same, with names of classes."""
        return named(answer)

    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether its class is another."""
        return bool(answer["label"] != truth)

    def truth(self, example: Mapping[str, Any]) -> str:
        """The name of its class."""
        return str(example.get("label", self.task.truth(example)))

    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """What reads the features of examples; see the base class."""
        task = self.task
        network = task.network(run)

        def features(inputs: HeldOut | None) -> Features:
            if inputs is None:
                examples, title = self.training(network), f"training {task.unit}"
            else:
                rows, title = self.examples(inputs), inputs.title
                examples = [{key: row[key] for key in row if key not in ("label", "target")} for row in rows]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # what predicts them says what is truncated
                return Predictor(task, network).features(examples, title)

        return features

    def training(self, network: TrainedHead) -> Examples:
        """A fixed choice of the training examples, whose classes a network must know."""
        task, names = self.task, network.names
        learned = task.label_names()
        if learned is None:  # a choice is among several inputs
            raise RunError(
                f"{network.folder}: expected a run that gives a class to each text or image, got one of {task.section}"
            )
        if list(names) != list(learned):
            raise RunError(
                f"{network.folder}: expected training {task.unit} of the {len(names)} classes that its network "
                "learned, got others; they have changed since: train again"
            )
        training = task.examples["train"]
        rows = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))[:FITTED]
        return [training[row] for row in rows.sort().values.tolist()]
