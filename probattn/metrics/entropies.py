"""Uncertainties of the posterior predictive, averaged over examples."""

from torch import Tensor

from probattn.metrics import functional
from probattn.metrics.base import ExampleMean
from probattn.metrics.functional.inputs import kept_by_mask


class MeanUncertainty(ExampleMean):
    """Mean of an uncertainty that needs no label."""

    def update(self, preds: Tensor, mask: Tensor | None = None) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]`` (not for the mutual information).
            mask: bool ``[N]``, True where the example counts; ``None``: all count.

        Raises:
            TypeError: ``preds`` is not floating-point or ``mask`` not bool.
            ValueError: a shape or value is not as described.
        """
        values = self._quantity(preds, inputs=self.inputs, validate_args=self.validate_args)
        self._accumulate(values, kept_by_mask(mask, values.shape[0], values.device))


class PredictiveEntropy(MeanUncertainty):
    """Mean total uncertainty: the entropy of the mean over draws, in nats.

    Options as for :func:`probattn.metrics.functional.predictive_entropy`, the value of each example.

    Example:
        >>> import torch
        >>> metric = PredictiveEntropy()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.6931)
    """

    _quantity = staticmethod(functional.predictive_entropy)


class ExpectedEntropy(MeanUncertainty):
    """Mean aleatoric uncertainty: the mean over draws of the entropy, in nats.

    Options as for :func:`probattn.metrics.functional.expected_entropy`, the value of each example.

    Example:
        >>> import torch
        >>> metric = ExpectedEntropy()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.3251)
    """

    _quantity = staticmethod(functional.expected_entropy)


class MutualInformation(MeanUncertainty):
    """Mean epistemic uncertainty: the disagreement of the draws, in nats.

    Options as for :func:`probattn.metrics.functional.mutual_information`, the value of each example.

    Example:
        >>> import torch
        >>> metric = MutualInformation()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.3681)
    """

    _quantity = staticmethod(functional.mutual_information)
