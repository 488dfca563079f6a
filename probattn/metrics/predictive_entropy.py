"""Entropy of the posterior predictive distribution, averaged over examples."""

from torch import Tensor

from probattn.metrics.base import ExampleMean
from probattn.metrics.functional.inputs import kept_by_mask
from probattn.metrics.functional.predictive_entropy import predictive_entropy


class PredictiveEntropy(ExampleMean):
    """Mean total uncertainty: the entropy of the mean over draws, in nats.

    See :func:`probattn.metrics.functional.predictive_entropy` for the value of each example.

    Args:
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``inputs`` is unknown.

    Example:
        >>> import torch
        >>> metric = PredictiveEntropy()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.6931)
    """

    def update(self, preds: Tensor, mask: Tensor | None = None) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]``.
            mask: bool ``[N]``, True where the example counts; ``None``: all count.

        Raises:
            TypeError: ``preds`` is not floating-point or ``mask`` not bool.
            ValueError: a shape or value is not as described.
        """
        values = predictive_entropy(preds, inputs=self.inputs, validate_args=self.validate_args)
        self._accumulate(values, kept_by_mask(mask, values.shape[0], values.device))
