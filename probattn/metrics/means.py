"""Uncertainties of the posterior predictive, and its scores against labels, averaged over examples."""

from typing import Any

import torch
from torch import Tensor

from probattn.metrics import functional
from probattn.metrics.base import ExampleMean
from probattn.metrics.functional import InputKind
from probattn.metrics.functional.inputs import example_mask, label_mask, prediction_shape


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
        self._accumulate(values, example_mask(mask, values.shape[0], values.device))


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


class MeanScore(ExampleMean):
    """Mean of a score of predictions against labels."""

    higher_is_better: bool = False

    def __init__(
        self,
        *,
        inputs: InputKind = "probabilities",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"ignore_index": ignore_index},
            **kwargs,
        )
        self.ignore_index = ignore_index

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: a shape, label or value is not as described.
        """
        mask = label_mask(
            target, *prediction_shape(preds), ignore_index=self.ignore_index, validate_args=self.validate_args
        )
        label = torch.where(mask, target, 0)
        values = self._quantity(preds, label, inputs=self.inputs, validate_args=self.validate_args)
        self._accumulate(values, mask)


class NegativeLogLikelihood(MeanScore):
    """Mean negative log-likelihood of the labels under the mean over draws, in nats.

    Options as for :func:`probattn.metrics.functional.negative_log_likelihood`, the value of each example;
    ``ignore_index`` is the label of examples that do not count.

    Example:
        >>> metric = NegativeLogLikelihood()
        >>> metric.update(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.8370)
    """

    _quantity = staticmethod(functional.negative_log_likelihood)


class BrierScore(MeanScore):
    """Mean Brier score of the mean over draws, in [0, 2].

    Options as for :func:`probattn.metrics.functional.brier_score`, the value of each example; ``ignore_index``
    is the label of examples that do not count.

    Example:
        >>> metric = BrierScore()
        >>> metric.update(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.6250)
    """

    _quantity = staticmethod(functional.brier_score)
