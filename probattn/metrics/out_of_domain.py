"""Metrics that compare the uncertainty of in-domain and out-of-domain inputs."""

from typing import Any

import torch
from torch import Tensor

from probattn.metrics.base import ScoredExamples
from probattn.metrics.functional.inputs import InputKind, kept_by_mask
from probattn.metrics.functional.uncertainty import UncertaintyKind, check_uncertainty_kind, uncertainty


class OutOfDomainMetric(ScoredExamples):
    """Scores inputs by their uncertainty and keeps which domain they came from.

    Subclasses say what to compute of the two sets. In a ``torchmetrics.MetricCollection`` they share their states.

    Args:
        score: uncertainty that serves as the score, see :func:`probattn.metrics.functional.uncertainty`.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``score`` or ``inputs`` is unknown.

    Example:
        >>> from probattn.metrics import OODFPR
        >>> issubclass(OODFPR, OutOfDomainMetric)
        True
    """

    def __init__(
        self,
        *,
        score: UncertaintyKind = "predictive_entropy",
        inputs: InputKind = "probabilities",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        check_uncertainty_kind(score)
        super().__init__(
            inputs=inputs, validate_args=validate_args, update_options={"score": score}, **kwargs
        )
        self.score_kind: UncertaintyKind = score

    def update(self, preds: Tensor, out_of_domain: Tensor | bool) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]``.
            out_of_domain: bool ``[N]``, True for inputs out of domain; one bool says it of the whole batch.

        Raises:
            TypeError: ``preds`` is not floating-point or ``out_of_domain`` not bool.
            ValueError: a shape or value is not as described.
        """
        values = uncertainty(preds, self.score_kind, inputs=self.inputs, validate_args=self.validate_args)
        self._keep(values, domain_of(out_of_domain, values), torch.ones_like(values, dtype=torch.bool))

    @property
    def domains(self) -> tuple[Tensor, Tensor]:
        """Scores in domain [N] and out of domain [M]."""
        scores, out = self._all()
        return scores[out == 0], scores[out != 0]


def domain_of(out_of_domain: Tensor | bool, like: Tensor) -> Tensor:
    """Which examples are out of domain.

    Args:
        out_of_domain: bool ``[N]``, or one bool for all.
        like: tensor ``[N]`` on the device of the predictions.

    Returns:
        bool ``[N]``.

    Raises:
        TypeError: the tensor is not bool.
        ValueError: its shape is not ``[N]``.

    Example:
        >>> domain_of(True, torch.zeros(2))
        tensor([True, True])
    """
    if isinstance(out_of_domain, bool):
        return torch.full_like(like, out_of_domain, dtype=torch.bool)
    return kept_by_mask(out_of_domain, like.shape[0], like.device, name="out_of_domain")
