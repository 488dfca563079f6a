"""Measures of answers to visual questions, and what they are computed from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from probattn.metrics.functional import top_two_p_value
from probattn.report import Predictions
from probattn.report.columns import P_VALUE
from probattn.report.measures import MeasureText
from probattn.tasks.measures import ACCURACY, ECE, bin_columns, number, share

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
    r"""What the measures are computed from, a row a question.

    An answer's accuracy :math:`a \in [0, 1]` is its score. PAvPU counts a certain answer as a and an uncertain one as
    1 - a, which is the usual count where a is 0 or 1, and otherwise its mean over annotators.

    Args:
        predictions: probability of each answer, ``[B, C]``; the largest is given, with its draws ``[P, B, C]``;
            fewer than two draws give no PAvPU.
        scores: accuracy of each answer ``[B, C]``.
        bins: of the calibration error.
    """
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
