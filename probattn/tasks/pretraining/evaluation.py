"""What a discriminator predicts of test passages, in which a generator replaced tokens, and the measures of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.inference.posterior import Posterior
from probattn.models import ElectraProgram
from probattn.models.electra import Corrupted
from probattn.models.program import IGNORED
from probattn.report import ModelKey
from probattn.report.bootstrap import Columns
from probattn.report.measures import MeasureText
from probattn.tasks.fine_tuning.predicted_tokens import token_columns, token_figures
from probattn.tasks.measures import ECE, bin_columns, calibration_error, number, share
from probattn.tasks.networks import Network
from probattn.tasks.pretraining.results import PredictedToken
from probattn.tasks.pretraining.vocabulary import piece

BINS = 1024
"""Bins of the scores behind an area under the curve."""
WIDEST = 8.0
"""Log-odds beyond which scores are in one bin."""

GENERATOR = "generator_"
"""How the names of the generator's columns and measures begin."""

MEASURES: Mapping[str, MeasureText] = {
    "accuracy": share(
        "Accuracy of detection", "Share of tokens that are classified right, as replaced or as original"
    ),
    "margin": share(
        "Above the majority rate",
        "The same less the larger of the shares of original and of replaced tokens, which one answer for all reaches",
        short="accuracy above the majority rate",
    ),
    "balanced_accuracy": share(
        "Balanced accuracy", "Mean of the shares of replaced and of original tokens that are classified right"
    ),
    "auroc": share("AUROC", "Probability that a replaced token has a higher score than an original one"),
    "nll": number("Negative log-likelihood", "Of whether a token was replaced, nats per token", short="NLL"),
    "ece": ECE,
    "generator_accuracy": share(
        "Accuracy of the generator", "Share of masked tokens that are its first choice"
    ),
    "generator_perplexity": number("Perplexity of the generator", "Per masked token"),
}


def detection_columns(logits: Tensor, replaced: Tensor, counted: Tensor, bins: int) -> dict[str, Tensor]:
    """Columns of the discriminator, a row a text, of ``counted`` tokens; ``logits`` of replacement ``[P, B, T]``."""
    size = len(replaced)
    owner, index = counted.nonzero(as_tuple=True)
    draws, truth = logits[:, owner, index].double(), replaced[owner, index]
    density = F.logsigmoid(torch.where(truth, draws, -draws)).logsumexp(dim=0) - math.log(len(draws))
    probability = draws.sigmoid().mean(dim=0)
    predicted = probability > 0.5

    def summed(values: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64).index_add_(0, owner, values.double())

    scores = torch.zeros(size * 2 * BINS)
    scores.index_add_(0, (2 * owner + truth) * BINS + score_bins(probability), torch.ones(len(truth)))
    return {
        "counts": torch.stack(
            [summed(predicted & truth), summed(truth), summed(~predicted & ~truth), summed(~truth)], dim=1
        ),
        "nll": summed(-density),
        "scores": scores.view(size, 2, BINS),
        "bins": bin_columns(
            torch.where(predicted, probability, 1 - probability), predicted == truth, owner, size, bins
        ),
    }


def score_bins(probability: Tensor) -> Tensor:
    """The bin of each probability of having been replaced, float64, by its log-odds."""
    edges = torch.linspace(-WIDEST, WIDEST, BINS - 1, dtype=torch.float64)
    return torch.bucketize(probability.logit(eps=1e-12), edges)


def generator_columns(corrupted: Corrupted, bins: int) -> dict[str, Tensor]:
    """What the measures of the generator are computed from, one row a text, by names that begin with its own."""
    columns = token_columns(Posterior(corrupted.logits[None].cpu()), corrupted.targets.cpu(), bins)
    return {GENERATOR + name: column for name, column in columns.items()}


def figures(columns: Columns) -> dict[str, float | None]:
    """The measures, and the shares that they stand against; None where one cannot be measured."""
    detected, replaced, rejected, originals = columns["counts"].sum(dim=0).tolist()
    tokens = replaced + originals
    generator = token_figures(
        {n.removeprefix(GENERATOR): column for n, column in columns.items() if n.startswith(GENERATOR)}
    )
    if not tokens:
        return dict.fromkeys((*MEASURES, "majority", "recall", "specificity"))
    recall, specificity = (
        count / whole if whole else None for count, whole in ((detected, replaced), (rejected, originals))
    )
    balanced = None if recall is None or specificity is None else (recall + specificity) / 2
    accuracy, majority = (detected + rejected) / tokens, max(originals, replaced) / tokens
    return {
        "accuracy": accuracy,
        "margin": accuracy - majority,
        "balanced_accuracy": balanced,
        "auroc": area(columns["scores"].sum(dim=0).double()),
        "nll": columns["nll"].sum().item() / tokens,
        "ece": calibration_error(columns["bins"]),
        "generator_accuracy": generator["accuracy"],
        "generator_perplexity": generator["perplexity"],
        "majority": majority,
        "recall": recall,
        "specificity": specificity,
    }


def area(scores: Tensor) -> float | None:
    """Area under the ROC curve of counts of original and of replaced tokens by score ``[2, M]``; one bin is a tie."""
    originals, replaced = scores
    pairs = originals.sum() * replaced.sum()
    if not pairs:
        return None
    below = originals.cumsum(dim=0) - originals / 2
    return float((replaced * below).sum() / pairs)


def validation_figures(logits: Tensor, corrupted: Corrupted, counted: Tensor) -> dict[str, Tensor]:
    """Accuracies in training, by text ``[B]``: of detection, of calling all original, of the generator."""
    number = counted.sum(dim=1).clamp_min(1)
    masked = corrupted.targets != IGNORED
    detected = ((logits > 0) == corrupted.replaced) & counted
    right = (corrupted.logits.argmax(dim=-1) == corrupted.targets) & masked
    return {
        "accuracy": detected.sum(dim=1) / number,
        "original": (~corrupted.replaced & counted).sum(dim=1) / number,
        "generator_accuracy": right.sum(dim=1) / masked.sum(dim=1).clamp_min(1),
    }


Trained = Network[ElectraProgram]


@dataclass(frozen=True)
class Replaced:
    """A batch as the discriminator reads it; ``counted`` ``[B, T]`` are the tokens that could be replaced."""

    inputs: Mapping[str, Tensor]
    counted: Tensor
    original_ids: Tensor
    corrupted: Corrupted


def tokens_of(
    codec: Any, batch: Replaced, row: int, by_model: Mapping[ModelKey, Tensor]
) -> Iterator[PredictedToken]:
    """The tokens of a passage that could be replaced, with the probabilities ``[B, T]`` of that by model."""
    for index in batch.counted[row].nonzero()[:, 0].tolist():
        token, original = (
            piece(codec, int(ids[row, index])) for ids in (batch.corrupted.input_ids, batch.original_ids)
        )
        yield PredictedToken(
            token=token,
            original=original if batch.corrupted.replaced[row, index] else None,
            probabilities={key: values[row, index].item() for key, values in by_model.items()},
        )
