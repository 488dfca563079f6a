"""PAvPU, accumulated."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.metrics.base import UncertaintyMetric
from probattn.metrics.functional.inputs import InputKind
from probattn.metrics.functional.pavpu import (
    CertaintyCriterion,
    certainty_counts,
    check_thresholds,
    pavpu_from_counts,
)


class PAvPU(UncertaintyMetric):
    """Share of predictions that are accurate and certain, or inaccurate and uncertain; higher is better.

    See :func:`probattn.metrics.functional.pavpu`. After ``update``, ``counts[k, accurate, certain]`` holds how many
    predictions fell where at the k-th threshold.

    Args:
        threshold: a number, or K numbers evaluated at once; ``None`` is 0.05 for p-values.
        criterion: ``"p_value"`` (Welch's t-test between the two likeliest classes), ``"predictive_entropy"`` or
            ``"mutual_information"`` (thresholds in nats).
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: an option is unknown, or a threshold of an entropy is missing.

    Example:
        >>> metric = PAvPU(threshold=[0.001, 0.05])
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> metric.update(draws, torch.tensor([0, 1]))
        >>> metric.compute()
        tensor([0.5000, 1.0000])
    """

    higher_is_better: bool = True
    plot_upper_bound: float = 1.0
    counts: Tensor

    def __init__(
        self,
        *,
        threshold: float | Sequence[float] | None = None,
        criterion: CertaintyCriterion = "p_value",
        inputs: InputKind = "probabilities",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        thresholds = check_thresholds(threshold, criterion)
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"thresholds": thresholds, "criterion": criterion, "ignore_index": ignore_index},
            **kwargs,
        )
        self.thresholds = thresholds
        self.criterion: CertaintyCriterion = criterion
        self.ignore_index = ignore_index
        self._add_sum_state("counts", len(thresholds), 2, 2, dtype=torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: draws ``[P, N, C]``; P may differ between batches.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: there is no dimension of draws, or a label or value is not as described.
        """
        self.counts = self.counts + certainty_counts(
            preds,
            target,
            thresholds=self.thresholds,
            criterion=self.criterion,
            inputs=self.inputs,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )

    def compute(self) -> Tensor:
        """PAvPU of all batches and processes.

        Returns:
            float32 ``[K]``, 0-d for a single threshold (also one in a sequence, as torchmetrics returns single
            values); NaN without any example.
        """
        return pavpu_from_counts(self.counts)
