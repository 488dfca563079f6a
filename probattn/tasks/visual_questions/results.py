"""Results of a run of visual questions: the records of ``metrics.json``, and the measures in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from probattn.metrics.functional import top_two_p_value
from probattn.report import ModelKey, Predictions, Results
from probattn.report.columns import P_VALUE
from probattn.report.measures import MeasureText
from probattn.report.record import Probability, Record, check_matrix
from probattn.tasks.measures import ACCURACY, ECE, bin_columns, number, share

Values = tuple[Annotated[float, Field(ge=0)], ...]
"""A number for each word or region."""


class GivenAnswer(Record):
    """An answer with its probability, and the standard deviation of that over draws; 0 without draws."""

    answer: str
    probability: Probability
    spread: Annotated[float, Field(ge=0)] = 0.0


class AnswerMap(Record):
    """An attention map, mean over heads, a row a query: mean and, where it is latent, standard deviation over draws."""

    mean: tuple[Values, ...]
    spread: tuple[Values, ...] = ()


class PartEffect(Record):
    """What a word or region does to the probability of the answer, in [-1, 1]; the answer without it, where another."""

    change: Annotated[float, Field(ge=-1, le=1)]
    answer: str | None = None


class VisualQuestionSample(Record):
    """A test question: answers by model, the attention maps of the run's own network, the image as a data address.

    Boxes are left, top, right and bottom as shares of the image; effects of words, or regions, are empty where one is
    alone.
    """

    question: str
    words: tuple[str, ...]
    image: str
    truth: tuple[str, ...]
    image_url: str = ""
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    answers: Mapping[ModelKey, tuple[GivenAnswer, ...]]
    word_map: AnswerMap
    region_map: AnswerMap
    word_weights: AnswerMap
    region_weights: AnswerMap
    word_effects: tuple[PartEffect, ...] = ()
    region_effects: tuple[PartEffect, ...] = ()

    @model_validator(mode="after")
    def _shapes(self) -> VisualQuestionSample:
        words, regions = len(self.words), len(self.region_map.mean)
        maps = {
            "word_map": (self.word_map, words, words),
            "region_map": (self.region_map, regions, words),
            "word_weights": (self.word_weights, 1, words),
            "region_weights": (self.region_weights, 1, regions),
        }
        for name, (values, height, width) in maps.items():
            for rows in (values.mean, *([values.spread] if values.spread else [])):
                check_matrix(name, rows, height, width)
        for name, size in (("boxes", regions), ("word_effects", words), ("region_effects", regions)):
            if (got := len(getattr(self, name))) not in (0, size):
                raise ValueError(f"{name}: expected {size} or none, got {got}")
        return self


class VisualQuestionResults(Results):
    """Everything that the report shows."""

    samples: tuple[VisualQuestionSample, ...] = ()


MEASURES: Mapping[str, MeasureText] = {
    "accuracy": MeasureText(
        "VQA accuracy",
        "accuracy",
        "Share of right answers; with several annotators the share of them that agrees, 1 from three on",
        "higher",
        "share",
        ACCURACY.gain,
        ACCURACY.loss,
    ),
    "pavpu": share(
        "PAvPU",
        "Share of accurate and certain or inaccurate and uncertain answers, certain by Welch's t-test of the two "
        f"leading answers at {P_VALUE:g}",
        short="PAvPU",
    ),
    "nll": number("Negative log-likelihood", "Binary, summed over answers, nats per question", short="NLL"),
    "ece": ECE,
}


def answer_columns(predictions: Predictions, scores: Tensor, bins: int) -> dict[str, Tensor]:
    """What the measures are computed from, a row a question, of answers with accuracies ``scores`` ``[B, C]``."""
    probabilities, scores = predictions.probabilities.cpu().double(), scores.cpu().double()
    confidence, predicted = probabilities.max(dim=-1)
    accuracy = scores.gather(1, predicted[:, None])[:, 0]
    safe = probabilities.clamp(1e-12, 1 - 1e-12)
    nll = -(scores * safe.log() + (1 - scores) * (-safe).log1p()).sum(dim=-1)
    columns = {"accuracy": accuracy, "nll": nll}
    rows = torch.arange(len(scores))
    columns["bins"] = bin_columns(confidence, accuracy, rows, len(rows), bins)
    if predictions.draws is not None and len(predictions.draws) > 1:
        draws = predictions.draws.cpu().double()
        right = scores.gather(1, draws.mean(dim=0).argmax(dim=-1, keepdim=True))[:, 0]
        certain = (top_two_p_value(draws, validate_args=False) < P_VALUE).double()
        columns["pavpu"] = certain * right + (1 - certain) * (1 - right)
    return columns


def figures(columns: Mapping[str, Tensor]) -> dict[str, float | None]:
    """The measures of some questions: of what :func:`answer_columns` gives."""
    values: dict[str, float | None] = {
        name: columns[name].mean().item() for name in MEASURES if name in columns
    }
    sums = columns["bins"].sum(dim=0)  # [M, 3]: number, accuracy, confidence
    values["ece"] = ((sums[:, 1] - sums[:, 2]).abs().sum() / len(columns["bins"])).item()
    return {name: values.get(name) for name in MEASURES}
