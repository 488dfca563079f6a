"""Measures of tasks whose network chooses one of several classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from probattn.inference.posterior import Posterior
from probattn.metrics.functional import (
    area_under_risk_coverage,
    brier_score,
    negative_log_likelihood,
    top_two_p_value,
)
from probattn.report.columns import P_VALUE
from probattn.report.measures import TEXTS
from probattn.tasks.fine_tuning.encoding import Answer, Batch
from probattn.tasks.fine_tuning.measures import bin_columns, calibration_error
from probattn.tasks.fine_tuning.results import Columns
from probattn.tasks.fine_tuning.task import HeadTask
from probattn.tasks.held_out import HeldOut


class ClassesTask(HeadTask):
    """A class for each example; labels are int64 ``[B]`` and predictions ``[B, C]``."""

    measures: ClassVar[Any] = {
        name: TEXTS[name] for name in ("accuracy", "nll", "brier", "ece", "aurc", "pavpu")
    }

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Whether each example is right."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return {"accuracy": (program(inputs).argmax(dim=-1) == batch["labels"]).float()}

    def held_out(self, file: str | None = None) -> Mapping[str, HeldOut]:
        """The validation examples and those that are measured; see the base class."""
        section = self.section_of_examples
        given = {} if file is None else {"test": section.read_examples(file, "test")}
        known = {
            section.identity(example) for name in ("train", "validation") for example in self.examples[name]
        }
        parts = {name: self.examples[name] for name in ("validation", *self._measured())} | given
        found = {}
        for name, examples in parts.items():
            described = None if name in (*given, "validation") else self._described(name)
            source = str(file if name in given else section.validation or section.train)
            title = str(file) if name in given else f"{Path(section.train).name} (validation)"
            found[name] = HeldOut(
                title=title if described is None else described.title,
                role=("in_domain" if name in given else name) if described is None else described.role,
                source=source if described is None else described.source,
                texts=[str(example.get("name", example.get("text"))) for example in examples],
                pairs=None,
                labels=[str(example["label"]) for example in examples],
                examples=examples,
                known=[index for index, example in enumerate(examples) if section.identity(example) in known]
                if name == "test"
                else (),
            )
        return found

    def predict_held_out(self, run: Path, held: HeldOut, **drawing: Any) -> Iterator[Answer]:
        """Answers for held-out examples; see the base class."""
        task = self.drawing(drawing["num_samples"], drawing["seed"])
        return task.answered(task.network(run), held.examples or (), drawing["uncertainty"])

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
