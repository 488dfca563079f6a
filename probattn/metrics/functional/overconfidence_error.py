"""Overconfidence error of the winning class."""

from torch import Tensor

from probattn.metrics.functional.inputs import InputKind
from probattn.metrics.functional.reliability_diagram import BinSums, bin_sums


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

    Args:
        preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
        target: integer labels ``[N]``.
        inputs: ``"probabilities"`` or ``"logits"``.
        n_bins: number of bins of equal width on [0, 1].
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        0-d float32 in [0, 1]; NaN without any example.

    Raises:
        TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
        ValueError: a shape, label or value is not as described, or ``n_bins`` is below 1.

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
    """Overconfidence error from the sums over bins.

    Args:
        sums: of one or more batches, added.

    Returns:
        0-d float32; NaN without any example.

    Example:
        >>> import torch
        >>> counts, correct = torch.tensor([0, 4]), torch.tensor([0, 3])
        >>> overconfidence_error_from_sums(BinSums(counts, correct, torch.tensor([0.0, 3.6])))
        tensor(0.1350)
    """
    confidence = sums.confidence / sums.counts.clamp(min=1)
    excess = (sums.confidence - sums.correct).clamp(min=0)  # [M], |B_m| times the excess
    return ((confidence * excess).sum() / sums.counts.sum()).float()
