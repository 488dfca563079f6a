"""Calibration error of the winning class, accumulated."""

from typing import Any

from torch import Tensor

from probattn.metrics.binned import BinnedMetric
from probattn.metrics.functional.calibration_error import (
    CalibrationNorm,
    calibration_error_from_sums,
    check_norm,
)
from probattn.metrics.functional.inputs import InputKind


class CalibrationError(BinnedMetric):
    """Expected calibration error (ECE) on the winning class, also for two classes.

    See :func:`probattn.metrics.functional.calibration_error`. The state is three numbers a bin, whatever the data.

    Args:
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        n_bins: number of bins of equal width on [0, 1].
        norm: ``"l1"`` (ECE), ``"l2"`` (root of the mean square) or ``"max"`` (largest gap of a bin, MCE).
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``inputs`` or ``norm`` is unknown or ``n_bins`` below 1.

    Example:
        >>> import torch
        >>> metric = CalibrationError()
        >>> metric.update(torch.tensor([[0.2, 0.8], [0.3, 0.7]]), torch.tensor([1, 0]))
        >>> metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> metric.compute()
        tensor(0.3333)
    """

    higher_is_better: bool = False
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        *,
        inputs: InputKind = "probabilities",
        n_bins: int = 10,
        norm: CalibrationNorm = "l1",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            inputs=inputs, n_bins=n_bins, ignore_index=ignore_index, validate_args=validate_args, **kwargs
        )
        check_norm(norm)
        self.norm: CalibrationNorm = norm

    def compute(self) -> Tensor:
        """Calibration error of all batches and processes.

        Returns:
            0-d float32 in [0, 1]; NaN without any example.
        """
        return calibration_error_from_sums(self.sums, self.norm)
