"""Measures of the runs of a synthetic task."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.models.copying.network import CopyingOutput, CopyingRuns, KeywordOutput
from probattn.models.copying.tasks import KeywordBatch
from probattn.probes import lexical_probe


def token_accuracy(logits: Tensor, target: Tensor) -> Tensor:
    """Share of output words that are the first choice, run by run.

    Args:
        logits: ``[R, B, T, V]``.
        target: integers ``[R, B, T]``.

    Returns:
        ``[R]`` float32.

    Example:
        >>> token_accuracy(torch.eye(3)[None, None], torch.tensor([[[0, 1, 1]]]))
        tensor([0.6667])
    """
    return (logits.argmax(dim=-1) == target).flatten(1).float().mean(dim=-1)


def share_at(ratings: Tensor, positions: Tensor) -> Tensor:
    """Share of output words whose highest-rated input position is the one that they come from, run by run.

    By chance it is 1 / L. Of several positions that share the maximum the first counts, so that equal ratings are right
    where the word comes from the first position, and nowhere else.

    Args:
        ratings: ``[R, B, T, L]``, such as attention weights or the lexical probe.
        positions: integers ``[R, T]``.

    Returns:
        ``[R]`` float32.

    Example:
        >>> ratings = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
        >>> share_at(ratings[None, None], torch.tensor([[0, 1]]))
        tensor([0.5000])
    """
    best = ratings == ratings.amax(dim=-1, keepdim=True)
    index = torch.arange(ratings.shape[-1], device=ratings.device)
    first = torch.where(best, index, ratings.shape[-1]).amin(dim=-1)  # [R, B, T]
    return (first == positions[:, None]).flatten(1).float().mean(dim=-1)


def copying_probe(model: CopyingRuns, output: CopyingOutput, target: Tensor) -> Tensor:
    r"""The logarithm of the lexical probe of every run (Snell et al. 2021, Eq. 4).

    The context is that of all heads at position l, :math:`K h_l` (``form="paper"``).

    Args:
        model: the runs.
        output: theirs.
        target: y, integers ``[R, B, T]``.

    Returns:
        ``[R, B, T, L]``.
    """
    states = model.context_at(output.states)
    inputs = zip(states, output.queries, target, strict=True)
    heads = [partial(model.predict_one, run) for run in range(model.num_runs)]
    return torch.stack([lexical_probe(head, *of, log=True) for head, of in zip(heads, inputs, strict=True)])


class KeywordMeasures(NamedTuple):
    r"""Means of log-odds over the sentences with the keyword, ``[R]`` each (Snell et al. 2021, section 6.1).

    Attributes:
        accuracy: share of all sentences that are classified rightly.
        keyword: :math:`\gamma_{l^*}`, at the keyword.
        next_word: :math:`\gamma_{l^*+1}`, one position later; over the sentences that have one.
        mean: :math:`\bar\gamma`, of all positions.
        last: :math:`\gamma_L`, at the last position.
    """

    accuracy: Tensor
    keyword: Tensor
    next_word: Tensor
    mean: Tensor
    last: Tensor


def keyword_measures(output: KeywordOutput, batch: KeywordBatch) -> KeywordMeasures:
    """Accuracy, and where the log-odds are.

    Args:
        output: of :class:`KeywordRuns`.
        batch: what it was made of.

    Returns:
        ``[R]`` each; NaN where a run has no sentence to average over.

    Example:
        >>> output = KeywordOutput(torch.tensor([[1.0]]), torch.tensor([[[0.0, 2.0, 1.0]]]))
        >>> batch = KeywordBatch(torch.tensor([[[3, 0, 5]]]), torch.tensor([[True]]), torch.tensor([[1]]))
        >>> [round(value.item(), 2) for value in keyword_measures(output, batch)]
        [1.0, 2.0, 1.0, 1.0, 1.0]
    """
    odds, labels, positions = output.log_odds, batch.labels, batch.positions
    length = odds.shape[-1]
    follows = labels & (positions < length - 1)
    at = odds.gather(-1, positions[..., None]).squeeze(-1)  # [R, B]
    after = odds.gather(-1, (positions[..., None] + 1).clamp(max=length - 1)).squeeze(-1)
    accuracy = ((output.logits > 0) == labels).float().mean(dim=-1)
    counted = (at, labels), (after, follows), (output.logits, labels), (odds[..., -1], labels)
    return KeywordMeasures(accuracy, *(_mean(*pair) for pair in counted))


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum(dim=-1) / counted.sum(dim=-1)  # 0 / 0 = NaN
