"""Calibration error of the winning class."""

from typing import Literal, get_args

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import InputKind
from probattn.metrics.functional.reliability_diagram import BinSums, bin_sums

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
    r"""Expected calibration error (ECE) on the winning class, also for two classes.

    .. math:: \mathrm{ECE} = \sum_m \frac{|B_m|}{n} \big|\mathrm{acc}(B_m) - \mathrm{conf}(B_m)\big|

    over ``n_bins`` bins of equal width (Guo et al. 2017, Eq. 3; Zhang et al. 2021, section 5.1.2). It equals
    torchmetrics' ``multiclass_calibration_error``, save that a confidence of exactly 1 belongs to the last bin
    instead of to one more, that draws are averaged, and that logits are declared instead of recognised by values
    outside [0, 1]. torchmetrics' *binary* form bins P(y = 1) and is another measure: 0.168 against 0.011 for a
    predictor that leans towards one class.

    Args:
        preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
        target: integer labels ``[N]``.
        inputs: ``"probabilities"`` or ``"logits"``.
        n_bins: number of bins of equal width on [0, 1].
        norm: ``"l1"`` (ECE), ``"l2"`` (root of the mean square) or ``"max"`` (largest gap of a bin, MCE).
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        0-d float32 in [0, 1]; NaN without any example.

    Raises:
        TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
        ValueError: a shape, label or value is not as described, or ``n_bins`` or ``norm`` is unknown.

    Example:
        >>> preds = torch.tensor([[0.1, 0.9], [0.7, 0.3], [0.8, 0.2], [0.3, 0.7]])
        >>> calibration_error(preds, torch.tensor([1, 0, 1, 1]))
        tensor(0.3750)
    """
    check_norm(norm)
    sums = bin_sums(
        preds, target, inputs=inputs, n_bins=n_bins, ignore_index=ignore_index, validate_args=validate_args
    )
    return calibration_error_from_sums(sums, norm)


def calibration_error_from_sums(sums: BinSums, norm: CalibrationNorm) -> Tensor:
    """Calibration error from the sums over bins.

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


def check_norm(norm: str) -> None:
    """Raises unless ``norm`` is known.

    Args:
        norm: name of a norm.

    Raises:
        ValueError: it is none of :data:`CalibrationNorm`.

    Example:
        >>> check_norm("l1")
    """
    if norm not in get_args(CalibrationNorm):
        raise ValueError(f"norm: expected one of {get_args(CalibrationNorm)}, got {norm!r}")
