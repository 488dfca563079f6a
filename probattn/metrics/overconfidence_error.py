"""Overconfidence error of the winning class, accumulated."""

from torch import Tensor

from probattn.metrics.binned import BinnedMetric
from probattn.metrics.functional.overconfidence_error import overconfidence_error_from_sums


class OverconfidenceError(BinnedMetric):
    """Overconfidence error (OE): confidence above accuracy, weighted by the confidence.

    See :func:`probattn.metrics.functional.overconfidence_error`.

    Args:
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        n_bins: number of bins of equal width on [0, 1].
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``inputs`` is unknown or ``n_bins`` below 1.

    Example:
        >>> import torch
        >>> metric = OverconfidenceError()
        >>> metric.update(torch.tensor([[0.2, 0.8], [0.2, 0.8]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.2400)
    """

    higher_is_better: bool = False
    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """Overconfidence error of all batches and processes.

        Returns:
            0-d float32 in [0, 1]; NaN without any example.
        """
        return overconfidence_error_from_sums(self.sums)
