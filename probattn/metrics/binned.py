"""Metrics that compare accuracy and confidence in bins."""

from typing import Any

import torch
from torch import Tensor

from probattn.metrics.base import UncertaintyMetric
from probattn.metrics.functional.inputs import InputKind
from probattn.metrics.functional.reliability_diagram import BinSums, bin_sums, check_n_bins


class BinnedMetric(UncertaintyMetric):
    """Sums over the bins of a reliability diagram; subclasses say what to compute of them.

    In a ``torchmetrics.MetricCollection`` such metrics share their states.

    Args:
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        n_bins: number of bins of equal width on [0, 1].
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``inputs`` is unknown or ``n_bins`` below 1.

    Example:
        >>> from probattn.metrics import CalibrationError
        >>> issubclass(CalibrationError, BinnedMetric)
        True
    """

    counts: Tensor
    correct: Tensor
    confidence: Tensor

    def __init__(
        self,
        *,
        inputs: InputKind = "probabilities",
        n_bins: int = 10,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        check_n_bins(n_bins)
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"n_bins": n_bins, "ignore_index": ignore_index},
            **kwargs,
        )
        self.n_bins = n_bins
        self.ignore_index = ignore_index
        self._add_sum_state("counts", n_bins, dtype=torch.int64)
        self._add_sum_state("correct", n_bins, dtype=torch.int64)
        self._add_sum_state("confidence", n_bins)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: a shape, label or value is not as described.
        """
        sums = bin_sums(
            preds,
            target,
            inputs=self.inputs,
            n_bins=self.n_bins,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )
        self.counts = self.counts + sums.counts
        self.correct = self.correct + sums.correct
        self.confidence = self.confidence + sums.confidence

    @property
    def sums(self) -> BinSums:
        """The sums over bins so far."""
        return BinSums(self.counts, self.correct, self.confidence)
