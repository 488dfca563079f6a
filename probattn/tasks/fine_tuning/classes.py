"""Measures of tasks whose network chooses one of several classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from probattn.inference.last_layer import Features
from probattn.inference.posterior import Posterior
from probattn.metrics.functional import (
    area_under_risk_coverage,
    brier_score,
    negative_log_likelihood,
    top_two_p_value,
)
from probattn.report.bootstrap import Columns
from probattn.report.columns import P_VALUE
from probattn.report.measures import CLASS_MEASURES
from probattn.tasks.answering import Deciding, Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.encoding import Answer, Batch
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.fine_tuning.task import HeadTask
from probattn.tasks.held_out import HeldOut
from probattn.tasks.measures import bin_columns, calibration_error


class ClassesTask(HeadTask):
    """A class for each example; labels are int64 ``[B]`` and predictions ``[B, C]``."""

    measures: ClassVar[Any] = {
        name: CLASS_MEASURES[name] for name in ("accuracy", "nll", "brier", "ece", "aurc", "pavpu")
    }

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Whether each example is right."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return {"accuracy": (program(inputs).argmax(dim=-1) == batch["labels"]).float()}

    @property
    def deciding(self) -> ClassesDeciding:
        """Decisions by the validation examples and those that are measured."""
        return ClassesDeciding(self)

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Confidence, and what is averaged."""
        labels, draws = batch.tensors["labels"], posterior.probabilities.double()
        probabilities = draws.mean(dim=0)
        confidence, predicted = probabilities.max(dim=-1)
        right = predicted == labels
        columns = {
            "confidence": confidence,
            "right": right,
            "nll": negative_log_likelihood(probabilities, labels),
            "brier": brier_score(probabilities, labels),
            "bins": bin_columns(
                confidence, right, torch.arange(len(labels)), len(labels), self.recipe.report.bins
            ),
        }
        if len(draws) > 1:
            columns["certain"] = top_two_p_value(draws) < P_VALUE
        return columns

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """The measures of some examples."""
        right, nll = columns["right"], columns["nll"].mean().item()
        measures: dict[str, float | None] = {
            "accuracy": right.double().mean().item(),
            "nll": nll if nll < float("inf") else None,
            "brier": columns["brier"].mean().item(),
            "ece": calibration_error(columns["bins"]),
            "aurc": area_under_risk_coverage(1 - columns["confidence"], ~right).item(),
        }
        if "certain" in columns:
            measures["pavpu"] = (right == columns["certain"]).double().mean().item()
        return measures


class ClassesDeciding(Deciding):
    """Decisions by the validation examples and those that are measured."""

    task: ClassesTask

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
        return {**data, "test": replace(test, known=shared)}

    def predict(self, run: Path, held: HeldOut, drawing: Drawing) -> Iterator[Answer]:
        """Answers for held-out examples; see the base class."""
        return self.task.answering.of_examples(run, held.examples or (), drawing)

    def features(self, run: Path) -> Callable[[HeldOut | None], Features]:
        """Refused: a choice is among several inputs."""
        raise RunError(
            f"{run}: expected a run that gives a class to each text or image, got one of {self.task.section}"
        )


def _held_out(examples: Examples, title: str, role: str, source: str) -> HeldOut:
    return HeldOut(
        title=title,
        role=role,
        source=source,
        texts=[str(example.get("name", example.get("text"))) for example in examples],
        pairs=None,
        labels=[str(example["label"]) for example in examples],
        examples=examples,
    )
