"""A categorical likelihood with label smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import cross_entropy


class SmoothedCategorical(TorchDistribution):
    r"""Classes whose observed value is held to be wrong with probability :math:`\epsilon`.

    With p the softmax of the logits over V classes, the log density of an observed class y is the mean of
    :math:`\log p` over what the class may be in truth: y itself or, with probability :math:`\epsilon`, any of the V
    alike (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4, with :math:`\epsilon = 0.1`):

    .. math:: \ell(y) = (1 - \epsilon) \log p_y + \frac{\epsilon}{V} \sum_v \log p_v

    It is the negative of ``torch.nn.functional.cross_entropy(..., label_smoothing=epsilon)``, computed by that
    function. With :math:`\epsilon = 0` it is the log density of ``Categorical``. Above 0 it is no density of y, so
    perplexities are computed without it. Draws are those of ``Categorical``.

    Args:
        logits: ``[..., V]``, floating-point.
        smoothing: :math:`\epsilon` in [0, 1).
        validate_args: whether to check the logits, and observed values; torch's default if None.

    Raises:
        ValueError: ``smoothing`` outside [0, 1), no dimension of classes, or logits that are not numbers.

    Example:
        >>> likelihood = SmoothedCategorical(torch.tensor([0.0, 0.0]), smoothing=0.1)
        >>> likelihood.log_prob(torch.tensor(1))
        tensor(-0.6931)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"logits": constraints.real_vector}

    def __init__(self, logits: Tensor, smoothing: float = 0.0, *, validate_args: bool | None = None) -> None:
        if not 0 <= smoothing < 1:
            raise ValueError(f"SmoothedCategorical.smoothing: expected a number in [0, 1), got {smoothing}")
        if logits.dim() < 1:
            raise ValueError(
                "SmoothedCategorical.logits: expected a dimension of classes [..., V], got a number"
            )
        self.logits = logits
        self.smoothing = smoothing
        super().__init__(logits.shape[:-1], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The classes 0 to V - 1."""
        return constraints.integer_interval(0, self.logits.shape[-1] - 1)

    def expand(
        self, batch_shape: Sequence[int], _instance: SmoothedCategorical | None = None
    ) -> SmoothedCategorical:
        """The same distribution with a larger batch shape."""
        new: SmoothedCategorical = self._get_checked_instance(SmoothedCategorical, _instance)
        batch_shape = torch.Size(batch_shape)
        new.logits = self.logits.expand(*batch_shape, -1)
        new.smoothing = self.smoothing
        super(SmoothedCategorical, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mode(self) -> Tensor:
        """The most likely class, int64 ``batch_shape``."""
        return self.logits.argmax(dim=-1)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws classes from the softmax, without smoothing: int64 ``sample_shape + batch_shape``."""
        return Categorical(logits=self.logits).sample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The smoothed log density of observed classes, int64, broadcast with the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        logits = self.logits.expand(*shape, -1).flatten(0, -2) if shape else self.logits[None]
        target = value.expand(shape).reshape(-1)
        loss = cross_entropy(logits, target, reduction="none", label_smoothing=self.smoothing)
        return -loss.reshape(shape)
