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
    """Computes the share of output words that have the largest logit, for each run.

    Args:
        logits: scores of V words, ``[R, B, T, V]``.
        target: right output words, integers ``[R, B, T]``.

    Returns:
        Accuracy of each run, float32 ``[R]``.

    Example:
        >>> token_accuracy(torch.eye(3)[None, None], torch.tensor([[[0, 1, 1]]]))
        tensor([0.6667])
    """
    return (logits.argmax(dim=-1) == target).flatten(1).float().mean(dim=-1)


def share_at(ratings: Tensor, positions: Tensor) -> Tensor:
    """Computes the share of output words whose highest-rated input position is their source position, for each run.

    Random ratings have the share 1 / L. In a tie the first of the positions counts.

    Args:
        ratings: ratings of L input positions, such as attention weights or the lexical probe, ``[R, B, T, L]``.
        positions: source position of each output word, :attr:`CopyBatch.positions`, integers ``[R, T]``.

    Returns:
        Share of each run, float32 ``[R]``.

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
    r"""Computes the logarithm of the lexical probe of every run (Snell et al. 2021, Eq. 4).

    The probe is the probability of output word :math:`y_t` if all K attention heads attended only to input position l;
    the context, a sum over heads, is then :math:`K h_l` (``form="paper"``).

    Args:
        model: the runs.
        output: output of ``model`` for a batch.
        target: right output words y of the batch, integers ``[R, B, T]``.

    Returns:
        Log-probabilities ``[R, B, T, L]``.
    """
    states = model.context_at(output.states)
    inputs = zip(states, output.queries, target, strict=True)
    heads = [partial(model.predict_one, run) for run in range(model.num_runs)]
    return torch.stack([lexical_probe(head, *of, log=True) for head, of in zip(heads, inputs, strict=True)])


class KeywordMeasures(NamedTuple):
    r"""Measures of :func:`keyword_measures`, ``[R]`` each (Snell et al. 2021, section 6.1).

    The log-odds :math:`\gamma` of :class:`KeywordRuns` are averaged over the sentences with the keyword, whose position
    is :math:`l^*`.

    Attributes:
        accuracy: share of correctly classified sentences, among all sentences, those without the keyword included.
        keyword: mean of :math:`\gamma_{l^*}`, the log-odds at the keyword.
        next_word: mean of :math:`\gamma_{l^*+1}`, over the sentences whose last word is not the keyword.
        mean: mean of :math:`\bar\gamma`, the average of :math:`\gamma_l` over all positions.
        last: mean of :math:`\gamma_L`, the log-odds at the last position.
    """

    accuracy: Tensor
    keyword: Tensor
    next_word: Tensor
    mean: Tensor
    last: Tensor


def keyword_measures(output: KeywordOutput, batch: KeywordBatch) -> KeywordMeasures:
    """Computes the accuracy, and the mean log-odds at and around the keyword.

    Args:
        output: output of :class:`KeywordRuns` for ``batch``.
        batch: sentences and labels.

    Returns:
        Measures ``[R]``; NaN for a run without a sentence to average over.

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
