"""Any number of labels for texts or pairs of texts: topics, slots that are mentioned, faults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.identity import Split
from probattn.inference.posterior import Posterior
from probattn.options import Filled
from probattn.report import Listing, ModelKey
from probattn.report.bootstrap import Columns
from probattn.report.record import mean_of
from probattn.tasks.answering import DIGITS
from probattn.tasks.fine_tuning.answering import Entropies, HeadDeciding
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.recipe import Examples, HeadRecipe, Rows, refuse_written_list
from probattn.tasks.fine_tuning.task import ENTROPIES, HeadTask
from probattn.tasks.fine_tuning.texts import TEXTS, TextsSection, texts_of
from probattn.tasks.fine_tuning.tokens import restaurant_utterances, scores_listing, span_scores
from probattn.tasks.measures import ECE, bin_columns, calibration_error, number, share
from probattn.tasks.networks import output_names
from probattn.tasks.sections.base import key

THRESHOLD = 0.5
"""A label is given where its probability is above it."""


def restaurant8k_slots(split: Split) -> Rows:
    """Utterances of RESTAURANTS-8K (Coope et al. 2020) with the slots that they mention."""
    for where, text, slots in restaurant_utterances(split):
        yield where, {"text": text, "labels": sorted({slot for slot, _, _ in slots})}


class LabelsSection(TextsSection):
    """Texts, or pairs of texts, with any number of labels each.

    `restaurant8k_slots` is built in: the slots that an utterance of a restaurant booking mentions (Coope et al. 2020).
    """

    named: ClassVar[Any] = {"restaurant8k_slots": restaurant8k_slots}

    label: Filled = key(
        "labels",
        "Column of the labels: a list of names, or a text with `separator` between them; empty for none.",
    )
    separator: Filled = key(";", "Separator of labels in a text.")

    def target(self, value: Any, where: str) -> list[str]:
        """The names of the labels, sorted."""
        if isinstance(value, str):
            refuse_written_list(value, self.label, where)
            value = [name for name in map(str.strip, value.split(self.separator)) if name]
        if not isinstance(value, list) or not all(isinstance(name, (str, int)) for name in value):
            raise DataError(
                f"{where}: expected a list of labels in {self.label!r}, or names with {self.separator!r} between "
                f"them, got {shown(value)}; leave it empty where there are none"
            )
        return sorted({str(name) for name in value})


class LabelsRecipe(HeadRecipe):
    """All that a run on texts with several labels depends on."""

    labels: LabelsSection = Field(description="The texts and their labels.")


class LabelsAnswer(Entropies):
    """What is stored of the labels of a text."""

    labels: str
    probability: dict[str, float]


class LabelsDeciding(HeadDeciding):
    """Decisions about all labels of a text together."""

    record = LabelsAnswer
    wrong_when = "a label of the text is wrong, missing or too many"

    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """With 1 less the probability of the least confident decision about a label."""
        return {**answer, "uncertainty": max(min(p, 1 - p) for p in answer["probability"].values())}

    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether any label differs."""
        return {name for name, p in answer["probability"].items() if p > THRESHOLD} != set(truth)


class Labels(HeadTask):
    """Multi-label classification of texts, by a network with one binary output per label."""

    section = "labels"
    recipe_class = LabelsRecipe
    decides = LabelsDeciding
    unit = "texts"
    inputs = TEXTS
    auto = AutoModelForSequenceClassification
    measures: ClassVar[Any] = {
        "micro_f1": share(
            "F1, micro", "Harmonic mean of precision and recall over all decisions", short="micro F1"
        ),
        "macro_f1": share(
            "F1, macro", "Mean F1 of the labels that are predicted or true somewhere", short="macro F1"
        ),
        "exact": share(
            "All labels right",
            "Share of texts with exactly the true labels",
            short="share of texts with all labels right",
        ),
        "nll": number("Negative log-likelihood", "Summed over the labels, nats per text", short="NLL"),
        "brier": number(
            "Brier score", "Squared distance between probability and label, 0 to 1, mean of labels"
        ),
        "ece": ECE,
    }
    headings: ClassVar[Any] = {
        "text": "Text",
        "pair": "Second text",
        "truth": "True labels",
        "labels": "Predicted",
        **ENTROPIES,
    }

    def label_names(self) -> Sequence[str]:
        """The labels of the training texts, sorted."""
        names = sorted({name for example in self.examples["train"] for name in example["target"]})
        if not names:
            section = self.section_of_examples
            raise DataError(f"{section.train}: expected labels in {section.label!r}, got none in any text")
        return names

    def head_options(self) -> Mapping[str, Any]:
        """Configuration of a network with one binary output per label."""
        return {"problem_type": "multi_label_classification"}

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """For each text, whether all labels are right."""
        right = (program(batch) > 0) == (batch["labels"] > THRESHOLD)
        return {"accuracy": right.all(dim=1).float()}

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of texts, with 1 for each of their labels and 0 for the others."""
        names = self.label_names()
        encoded = []
        for example, inputs in zip(examples, self.section_of_examples.tokens(codec, examples), strict=True):
            if "target" in example:
                unknown = next((name for name in example["target"] if name not in names), None)
                if unknown is not None:
                    raise DataError(
                        f"{self.section_of_examples.train}: expected labels of the training texts "
                        f"({', '.join(names)}), got {unknown!r} of {shown(example['text'])}; add such a text to them"
                    )
                inputs["labels"] = [float(name in example["target"]) for name in names]
            encoded.append(Encoded([inputs]))
        return encoded

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of decisions per label, and of sums over labels."""
        truth = batch.tensors["labels"].bool()
        size, classes = truth.shape
        probabilities = posterior.mean_probabilities.double()
        predicted = probabilities > THRESHOLD
        right = predicted == truth
        logits = posterior.logits.double()
        density = nn.functional.logsigmoid(logits.where(truth, -logits))
        owner = torch.arange(size).repeat_interleave(classes)
        confidence = probabilities.where(predicted, 1 - probabilities)
        return {
            "decisions": torch.stack([predicted & truth, predicted, truth], dim=-1).double(),
            "exact": right.all(dim=1).double(),
            "nll": (math.log(len(logits)) - density.logsumexp(dim=0)).sum(dim=1),
            "brier": (probabilities - truth.double()).square().mean(dim=1),
            "bins": bin_columns(confidence.flatten(), right.flatten(), owner, size, self.recipe.report.bins),
        }

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the examples in ``columns``."""
        counts = columns["decisions"].sum(dim=0)
        means = {name: columns[name].mean().item() for name in ("exact", "nll", "brier")}
        return {
            "micro_f1": span_scores(counts.sum(dim=0))[2],
            "macro_f1": mean_of(span_scores(count)[2] for count in counts),
            **means,
            "ece": calibration_error(columns["bins"]),
        }

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Table of precision, recall and F1 of each label, for the run's network."""
        yield scores_listing("By label", ("Label", "Texts"), self.label_names(), columns, "decisions")

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The labels of each text, the probabilities of all labels, and entropies summed over labels."""
        names = output_names(batch.config)
        entropy, information = posterior.entropy.sum(dim=1), posterior.mutual_information.sum(dim=1)
        answers = []
        for row, example in enumerate(batch.examples):
            probability = dict(zip(names, posterior.mean_probabilities[row].tolist(), strict=True))
            answers.append(
                {
                    **texts_of(example),
                    "labels": _listed([name for name in names if probability[name] > THRESHOLD]),
                    "probability": {name: round(value, DIGITS) for name, value in probability.items()},
                    "entropy": entropy[row].item(),
                    "mutual_information": information[row].item(),
                }
            )
        return answers

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true labels."""
        return _listed(example["target"])


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"
