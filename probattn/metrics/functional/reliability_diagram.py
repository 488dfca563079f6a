"""Accuracy against confidence, in bins: what a reliability diagram shows and calibration errors sum up."""

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, kept_examples, mean_probabilities
from probattn.metrics.functional.precision import accumulation_dtype


class BinSums(NamedTuple):
    """Sums over the examples of each of M bins; they add up over batches and processes.

    Attributes:
        counts: examples, int64 ``[M]``.
        correct: examples whose winning class is the label, int64 ``[M]``.
        confidence: sum of the winning probabilities, float64 ``[M]``.
    """

    counts: Tensor
    correct: Tensor
    confidence: Tensor


class ReliabilityBins(NamedTuple):
    """The bars of a reliability diagram with M bins of equal width.

    Attributes:
        edges: float32 ``[M + 1]``, from 0 to 1; bin m is [edges[m], edges[m+1]), the last one closed.
        counts: examples, int64 ``[M]``.
        accuracy: share of correct examples ``[M]``; NaN in an empty bin.
        confidence: mean winning probability ``[M]``; NaN in an empty bin.
    """

    edges: Tensor
    counts: Tensor
    accuracy: Tensor
    confidence: Tensor


def reliability_diagram(
    preds: Tensor,
    target: Tensor,
    *,
    inputs: InputKind = "probabilities",
    n_bins: int = 10,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> ReliabilityBins:
    """Bins predictions by the probability of their winning class.

    For two classes too it is the winning class that is binned (confidences from 0.5 on), not P(y = 1).

    Args:
        preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
        target: integer labels ``[N]``.
        inputs: ``"probabilities"`` or ``"logits"``.
        n_bins: M, number of bins of equal width on [0, 1].
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        The bars; without any example all counts are 0 and the rest is NaN.

    Raises:
        TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
        ValueError: a shape, label or value is not as described, or ``n_bins`` is below 1.

    Example:
        >>> preds = torch.tensor([[0.1, 0.9], [0.7, 0.3], [0.8, 0.2]])
        >>> bins = reliability_diagram(preds, torch.tensor([1, 0, 1]), n_bins=2)
        >>> bins.counts, bins.accuracy, bins.confidence
        (tensor([0, 3]), tensor([   nan, 0.6667]), tensor([   nan, 0.8000]))
    """
    sums = bin_sums(
        preds, target, inputs=inputs, n_bins=n_bins, ignore_index=ignore_index, validate_args=validate_args
    )
    return reliability_from_sums(sums)


def bin_sums(
    preds: Tensor,
    target: Tensor,
    *,
    inputs: InputKind = "probabilities",
    n_bins: int = 10,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> BinSums:
    """Sums over the examples of each bin, see :func:`reliability_diagram` for the arguments.

    Bin edges are float32 multiples of 1/M. A confidence on an edge belongs to the bin above; 1 to the last bin.

    Args:
        preds: ``[P, N, C]`` or ``[N, C]``.
        target: integer labels ``[N]``.
        inputs: ``"probabilities"`` or ``"logits"``.
        n_bins: M.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values.

    Returns:
        The sums, zero without any example.

    Raises:
        TypeError: as for :func:`reliability_diagram`.
        ValueError: as for :func:`reliability_diagram`.

    Example:
        >>> bin_sums(torch.tensor([[0.25, 0.75]]), torch.tensor([1]), n_bins=2)
        BinSums(counts=tensor([0, 1]), correct=tensor([0, 1]), confidence=tensor([0.0000, 0.7500], dtype=torch.float64))
    """
    check_n_bins(n_bins)
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)  # [N, C]
    kept = kept_examples(target, *mean.shape, ignore_index=ignore_index, validate_args=validate_args)
    confidence, winner = mean.max(dim=-1)
    inner = bin_edges(n_bins, mean.device)[1:-1]
    index = torch.bucketize(confidence.float(), inner, right=True)  # [N]
    # A sum over members instead of scatter_add: the same on every run on a GPU.
    members = (index.unsqueeze(-1) == torch.arange(n_bins, device=mean.device)) & kept.unsqueeze(-1)  # [N, M]
    correct = members & (winner == target).unsqueeze(-1)
    confidences = confidence.detach().to(accumulation_dtype(mean.device)).unsqueeze(-1) * members
    return BinSums(members.sum(dim=0), correct.sum(dim=0), confidences.sum(dim=0))


def reliability_from_sums(sums: BinSums) -> ReliabilityBins:
    """The bars of a diagram from the sums over its bins.

    Args:
        sums: of one or more batches, added.

    Returns:
        The bars in float32; NaN in empty bins.

    Example:
        >>> counts, correct = torch.tensor([0, 4]), torch.tensor([0, 3])
        >>> reliability_from_sums(BinSums(counts, correct, torch.tensor([0.0, 3.6]))).confidence
        tensor([   nan, 0.9000])
    """
    return ReliabilityBins(
        edges=bin_edges(sums.counts.shape[0], sums.counts.device),
        counts=sums.counts,
        accuracy=(sums.correct.to(sums.confidence.dtype) / sums.counts).float(),
        confidence=(sums.confidence / sums.counts).float(),
    )


def bin_edges(n_bins: int, device: torch.device) -> Tensor:
    """Edges of M bins of equal width on [0, 1].

    Args:
        n_bins: M.
        device: where the edges are to live.

    Returns:
        float32 ``[M + 1]``.

    Example:
        >>> bin_edges(2, torch.device("cpu"))
        tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.linspace(0, 1, n_bins + 1, dtype=torch.float32, device=device)


def check_n_bins(n_bins: int) -> None:
    """Raises unless the number of bins is a positive integer.

    Args:
        n_bins: number of bins.

    Raises:
        ValueError: it is not.

    Example:
        >>> check_n_bins(10)
    """
    if not isinstance(n_bins, int) or isinstance(n_bins, bool) or n_bins < 1:
        raise ValueError(f"n_bins: expected an integer of at least 1, got {n_bins!r}")
