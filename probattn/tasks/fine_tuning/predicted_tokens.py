"""Measures of predicted tokens, which several tasks share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probattn.inference.posterior import Posterior
from probattn.models.program import IGNORED
from probattn.report.bootstrap import Columns
from probattn.report.measures import MeasureText
from probattn.tasks.measures import ECE, bin_columns, calibration_error, number, share

TOKEN_MEASURES: Mapping[str, MeasureText] = {
    "nll": number("Negative log-likelihood", "Of the true token, nats per token", short="NLL"),
    "perplexity": number("Perplexity", "Exponential of the negative log-likelihood per token"),
    "accuracy": share("Accuracy of tokens", "Share of tokens whose most probable one is right"),
    "ece": ECE,
}


def token_columns(posterior: Posterior, labels: Tensor, bins: int) -> Columns:
    """Sums over the labelled tokens of each text, from predictions ``[P, B, T, C]`` and labels int64 ``[B, T]``."""
    size = len(labels)
    owner, position = (labels != IGNORED).nonzero(as_tuple=True)
    truth = labels[owner, position]
    draws = posterior.logits[:, owner, position].float().log_softmax(dim=-1)
    density = draws.gather(2, truth.expand(len(draws), -1)[..., None])[..., 0].double()
    confidence, predicted = draws.exp().mean(dim=0).max(dim=-1)
    right = predicted == truth

    def summed(values: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64).index_add_(0, owner, values.double())

    return {
        "tokens": summed(torch.ones_like(confidence)),
        "right": summed(right),
        "nll": summed(math.log(len(draws)) - density.logsumexp(dim=0)),
        "bins": bin_columns(confidence.double(), right, owner, size, bins),
    }


def token_figures(columns: Columns) -> dict[str, float | None]:
    """The measures of :data:`TOKEN_MEASURES`; None where no token is predicted, or where one is infinite."""
    tokens = columns["tokens"].sum().item()
    if not tokens:
        return dict.fromkeys(TOKEN_MEASURES)
    nll = columns["nll"].sum().item() / tokens
    return {
        "nll": nll if math.isfinite(nll) else None,
        "perplexity": math.exp(nll) if nll < math.log(1e12) else None,
        "accuracy": columns["right"].sum().item() / tokens,
        "ece": calibration_error(columns["bins"]),
    }


def stacked(pad: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Rows of token numbers as a batch, filled up to the longest: tokens by ``pad``, labels by ``IGNORED``."""
    fill = {"input_ids": pad, "original_ids": pad, "labels": IGNORED, "special_tokens_mask": 1}
    columns = {name: [torch.tensor(row[name]) for row in rows] for name in rows[0]}
    return {name: pad_sequence(column, True, fill.get(name, 0)) for name, column in columns.items()}
