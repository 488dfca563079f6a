"""Calibration: accuracy against confidence in bins, and the errors that sum it up."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_integer
from probattn.metrics.functional.inputs import (
    InputKind,
    accumulation_dtype,
    check_option,
    label_mask,
    mean_probabilities,
    widened,
)


class BinSums(NamedTuple):
    """Sums over the examples of each of M bins; they add up over batches and processes.

    Attributes:
        counts: number of examples, int64 ``[M]``.
        correct: number of examples whose predicted class is the label, int64 ``[M]``.
        confidence: sum of the probabilities of the predicted classes, float64 ``[M]``.
    """

    counts: Tensor
    correct: Tensor
    confidence: Tensor


class ReliabilityBins(NamedTuple):
    """The bars of a reliability diagram with M bins of equal width.

    Attributes:
        edges: float32 ``[M + 1]``, from 0 to 1; bin m is [edges[m], edges[m+1]), the last one closed.
        counts: number of examples, int64 ``[M]``.
        accuracy: share of correct examples ``[M]``; NaN in an empty bin.
        confidence: mean probability of the predicted class ``[M]``; NaN in an empty bin.
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
    """Accuracy and confidence in bins of confidence, the probability of the predicted class.

    For two classes too, the confidence is the probability of the predicted class (at least 0.5), not P(y = 1).

    Args:
        preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
        target: integer labels ``[N]``.
        inputs: ``"probabilities"`` or ``"logits"``.
        n_bins: M, number of bins of equal width on [0, 1].
        ignore_index: label of examples that are ignored.
        validate_args: whether to check the values, which synchronises with the device.

    Returns:
        The diagram; an empty bin has count 0, and NaN as accuracy and confidence.

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
    """Sums over the examples of each of M bins; arguments and errors are those of :func:`reliability_diagram`.

    Bin edges are float32 multiples of 1/M. A confidence on an edge belongs to the bin above; 1 to the last bin.

    Returns:
        The sums, 0 in an empty bin.

    Example:
        >>> bin_sums(torch.tensor([[0.25, 0.75]]), torch.tensor([1]), n_bins=2)
        BinSums(counts=tensor([0, 1]), correct=tensor([0, 1]), confidence=tensor([0.0000, 0.7500], dtype=torch.float64))
    """
    check_integer("bin_sums", "n_bins", n_bins, minimum=1)
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)  # [N, C]
    mask = label_mask(target, *mean.shape, ignore_index=ignore_index, validate_args=validate_args)
    confidence, predicted = mean.max(dim=-1)
    index = bin_index(confidence, n_bins)  # [N]
    # A sum over members instead of scatter_add: the same on every run on a GPU.
    members = (index.unsqueeze(-1) == torch.arange(n_bins, device=mean.device)) & mask.unsqueeze(-1)  # [N, M]
    correct = members & (predicted == target).unsqueeze(-1)
    confidences = confidence.detach().to(accumulation_dtype(mean.device)).unsqueeze(-1) * members
    return BinSums(members.sum(dim=0), correct.sum(dim=0), confidences.sum(dim=0))


def bin_index(confidence: Tensor, n_bins: int) -> Tensor:
    """Number of the bin of each confidence, from 0, int64 of the same shape; edges are those of :func:`bin_sums`."""
    inner = bin_edges(n_bins, confidence.device)[1:-1]
    return torch.bucketize(confidence.float(), inner, right=True)


def reliability_from_sums(sums: BinSums) -> ReliabilityBins:
    """:func:`reliability_diagram` from the sums over its bins; add those of several batches.

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
    """Edges of M bins of equal width on [0, 1], float32 [M + 1]."""
    return torch.linspace(0, 1, n_bins + 1, dtype=torch.float32, device=device)


CalibrationNorm = Literal["l1", "l2", "max"]
"""Summary of the bins' gaps between accuracy and confidence: mean (``"l1"``), root mean square (``"l2"``), maximum."""


def calibration_error(
    preds: Tensor,
    target: Tensor,
    *,
    inputs: InputKind = "probabilities",
    n_bins: int = 10,
    norm: CalibrationNorm = "l1",
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Expected calibration error (ECE) of the predicted class, also for two classes.

    .. math:: \mathrm{ECE} = \sum_m \frac{|B_m|}{n} \big|\mathrm{acc}(B_m) - \mathrm{conf}(B_m)\big|

    with n examples, of which :math:`B_m` are in bin m of ``n_bins`` bins of equal width, acc their accuracy and conf
    their mean confidence (Guo et al. 2017, Eq. 3; Zhang et al. 2021a, section 5.1.2). It equals torchmetrics'
    ``multiclass_calibration_error`` except in three points: a confidence of exactly 1 belongs to the last bin instead
    of an additional one, draws are averaged, and logits are declared instead of recognised by values outside [0, 1].
    torchmetrics' *binary* form bins P(y = 1), a different measure.

    ``norm`` is ``"l1"`` (ECE), ``"l2"`` (root of the weighted mean of squared gaps) or ``"max"`` (largest gap, MCE).
    The other arguments and the errors are those of :func:`reliability_diagram`.

    Returns:
        0-d float32 in [0, 1]; NaN without any example.

    Example:
        >>> preds = torch.tensor([[0.1, 0.9], [0.7, 0.3], [0.8, 0.2], [0.3, 0.7]])
        >>> calibration_error(preds, torch.tensor([1, 0, 1, 1]))
        tensor(0.3750)
    """
    check_option("norm", norm, CalibrationNorm)
    sums = bin_sums(
        preds, target, inputs=inputs, n_bins=n_bins, ignore_index=ignore_index, validate_args=validate_args
    )
    return calibration_error_from_sums(sums, norm)


def calibration_error_from_sums(sums: BinSums, norm: CalibrationNorm) -> Tensor:
    """:func:`calibration_error` from the sums over its bins; add those of several batches.

    Example:
        >>> counts, correct = torch.tensor([0, 4]), torch.tensor([0, 3])
        >>> calibration_error_from_sums(BinSums(counts, correct, torch.tensor([0.0, 3.6])), "l1")
        tensor(0.1500)
    """
    total = sums.counts.sum()
    gaps = (sums.correct - sums.confidence).abs()  # [M], |B_m| times the gap
    shares = sums.counts / total
    if norm == "l1":
        return (gaps.sum() / total).float()
    gaps = gaps / sums.counts.clamp(min=1)
    if norm == "max":
        return torch.where(total > 0, gaps.max(), torch.nan).float()
    return (gaps.square() * shares).sum().sqrt().float()


def overconfidence_error(
    preds: Tensor,
    target: Tensor,
    *,
    inputs: InputKind = "probabilities",
    n_bins: int = 10,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Overconfidence error (OE): excess of confidence over accuracy, weighted by the confidence.

    .. math:: \mathrm{OE} = \sum_m \frac{|B_m|}{n} \mathrm{conf}(B_m)
        \max\big(\mathrm{conf}(B_m) - \mathrm{acc}(B_m), 0\big)

    in the bins of :func:`calibration_error` (Thulasidasan et al. 2019, section 2.2); never above the ECE.
    Arguments and errors are those of :func:`reliability_diagram`.

    Returns:
        0-d float32 in [0, 1]; NaN without any example.

    Example:
        >>> import torch
        >>> overconfidence_error(torch.tensor([[0.2, 0.8], [0.2, 0.8]]), torch.tensor([0, 1]))
        tensor(0.2400)
    """
    sums = bin_sums(
        preds, target, inputs=inputs, n_bins=n_bins, ignore_index=ignore_index, validate_args=validate_args
    )
    return overconfidence_error_from_sums(sums)


def overconfidence_error_from_sums(sums: BinSums) -> Tensor:
    """:func:`overconfidence_error` from the sums over its bins; add those of several batches.

    Example:
        >>> import torch
        >>> counts, correct = torch.tensor([0, 4]), torch.tensor([0, 3])
        >>> overconfidence_error_from_sums(BinSums(counts, correct, torch.tensor([0.0, 3.6])))
        tensor(0.1350)
    """
    confidence = sums.confidence / sums.counts.clamp(min=1)
    excess = (sums.confidence - sums.correct).clamp(min=0)  # [M], |B_m| times the excess
    return ((confidence * excess).sum() / sums.counts.sum()).float()


LARGEST_LOG = 7.0  # temperatures are looked for between exp(-7) and exp(7)


def best_temperature(logits: Tensor, target: Tensor) -> Tensor:
    r"""The temperature of the softmax that makes held-out labels most likely (Guo et al. 2017, section 4.2).

    .. math:: T = \arg\min_{T > 0} -\sum_i \log \mathrm{softmax}(z_i / T)_{y_i}

    The objective is convex in 1 / T; bisection in log T finds the root of its derivative to rounding error. For
    predictions averaged over draws, pass the logarithms of the mean probabilities.

    Args:
        logits: z, finite logits of held-out examples ``[N, C]``.
        target: y, their labels, int64 ``[N]``.

    Returns:
        T, 0-d float64 (float32 on devices without it). If the likelihood has no maximum within [exp(-7), exp(7)], for
        instance because every prediction is right, T is an end of this range.

    Raises:
        ValueError: ``logits`` is empty, has another shape or is not finite.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
        >>> best_temperature(logits, torch.tensor([0, 0, 1, 1])).round(decimals=4)  # three of four right: 4 / log 3
        tensor(3.6410, dtype=torch.float64)
    """
    if logits.dim() != 2 or not len(logits) or target.shape != logits.shape[:1]:
        raise ValueError(
            f"best_temperature: expected logits [N, C] and labels [N], N >= 1, got {list(logits.shape)} and "
            f"{list(target.shape)}"
        )
    if not bool(logits.isfinite().all()):
        raise ValueError("best_temperature: expected finite logits, got NaN or an infinity")
    values = widened(logits)
    values = values - values.amax(dim=-1, keepdim=True)
    true = values.gather(1, target[:, None])[:, 0]
    low, high = (values.new_tensor(end) for end in (-LARGEST_LOG, LARGEST_LOG))
    for _ in range(64):
        middle = (low + high) / 2
        weights = (values * (-middle).exp()).softmax(dim=-1)
        excess = ((weights * values).sum(dim=-1) - true).mean()  # the derivative by 1 / T
        low, high = torch.where(excess > 0, middle, low), torch.where(excess > 0, high, middle)
    return ((low + high) / 2).exp()
