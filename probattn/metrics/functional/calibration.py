"""Calibration: accuracy against confidence in bins, and the errors that sum it up."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

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
        counts: examples, int64 ``[M]``.
        correct: examples whose predicted class is the label, int64 ``[M]``.
        confidence: sum of the probabilities of the predicted classes, float64 ``[M]``.
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
    """Bins predictions by the probability of their predicted class.

    For two classes too it is the predicted class that is binned (confidences from 0.5 on), not P(y = 1).

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
    """Sums over the examples of each bin; arguments and errors are those of :func:`reliability_diagram`.

    Bin edges are float32 multiples of 1/M. A confidence on an edge belongs to the bin above; 1 to the last bin.

    Returns:
        The sums, zero without any example.

    Example:
        >>> bin_sums(torch.tensor([[0.25, 0.75]]), torch.tensor([1]), n_bins=2)
        BinSums(counts=tensor([0, 1]), correct=tensor([0, 1]), confidence=tensor([0.0000, 0.7500], dtype=torch.float64))
    """
    check_n_bins(n_bins)
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
    """Bins of confidences, an int64 tensor of the same shape; the edges are those of :func:`bin_sums`."""
    inner = bin_edges(n_bins, confidence.device)[1:-1]
    return torch.bucketize(confidence.float(), inner, right=True)


def reliability_from_sums(sums: BinSums) -> ReliabilityBins:
    """The bars of a diagram, float32, NaN in empty bins, from the sums over its bins, of one or more batches, added.

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


def check_n_bins(n_bins: int) -> None:
    """Raises unless the number of bins is a positive integer."""
    if not isinstance(n_bins, int) or isinstance(n_bins, bool) or n_bins < 1:
        raise ValueError(f"n_bins: expected an integer of at least 1, got {n_bins!r}")


CalibrationNorm = Literal["l1", "l2", "max"]
"""``"l1"``: expected calibration error; ``"l2"``: its root mean square; ``"max"``: the worst bin."""


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
    r"""Expected calibration error (ECE) on the predicted class, also for two classes.

    .. math:: \mathrm{ECE} = \sum_m \frac{|B_m|}{n} \big|\mathrm{acc}(B_m) - \mathrm{conf}(B_m)\big|

    over ``n_bins`` bins of equal width (Guo et al. 2017, Eq. 3; Zhang et al. 2021, section 5.1.2). It equals
    torchmetrics' ``multiclass_calibration_error``, save that a confidence of exactly 1 belongs to the last bin
    instead of to one more, that draws are averaged, and that logits are declared instead of recognised by values
    outside [0, 1]. torchmetrics' *binary* form bins P(y = 1) and is another measure: 0.168 against 0.011 for a
    predictor that leans towards one class.

    ``norm`` is ``"l1"`` (ECE), ``"l2"`` (root of the mean square) or ``"max"`` (largest gap of a bin, MCE). The other
    arguments and the errors are those of :func:`reliability_diagram`.

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
    """:func:`calibration_error` from the sums over bins.

    Args:
        sums: of one or more batches, added.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.

    Returns:
        0-d float32; NaN without any example.

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
    r"""Overconfidence error (OE): only confidence above accuracy counts, and more so the higher it is.

    .. math:: \mathrm{OE} = \sum_m \frac{|B_m|}{n} \mathrm{conf}(B_m)
        \max\big(\mathrm{conf}(B_m) - \mathrm{acc}(B_m), 0\big)

    in the bins of the calibration error (Thulasidasan et al. 2019, section 2.2); never above the ECE.
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
    """:func:`overconfidence_error` from the sums over bins, of one or more batches, added.

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

    The objective is convex in 1 / T; the root of its derivative is bracketed and halved in log T to rounding. Logits of
    a mean over draws are the logarithms of its probabilities.

    Args:
        logits: held-out ones, finite, ``[N, C]``.
        target: labels, int64 ``[N]``.

    Returns:
        0-d float64 (float32 on devices without it); the end of the range [exp(-7), exp(7)] where the likelihood has no
        maximum within, as where every prediction is right.

    Raises:
        ValueError: no logits, logits of another shape, or that are not finite.

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
