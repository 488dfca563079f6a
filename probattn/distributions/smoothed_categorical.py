"""A categorical likelihood of weighted, uncertain or smoothed labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import cross_entropy


class SmoothedCategorical(TorchDistribution):
    r"""Categorical likelihood with label smoothing, soft labels and class weights.

    With p the softmax of the logits over V classes, the log-likelihood of an observed class y is the mean of
    :math:`\log p` over the possible true classes: y with probability :math:`1 - \epsilon`, else one of the V classes
    drawn uniformly (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4, with :math:`\epsilon = 0.1`). A
    soft label is a distribution t over the classes (votes of annotators, a teacher's probabilities; Hinton et al.
    2015). With weights w of the classes

    .. math:: \ell(t) = \sum_v w_v \Big((1 - \epsilon)\, t_v + \frac{\epsilon}{V}\Big) \log p_v,
        \quad t_v = [v = y] \text{ for a class } y.

    The value is the negative of ``torch.nn.functional.cross_entropy(..., weight=w, label_smoothing=epsilon)`` without
    reduction. For a class label (not a soft one), :math:`\epsilon = 0` and no weights it is the log density of
    ``Categorical``; otherwise it is not the log of a normalised density of y. Samples are classes drawn from p.

    Args:
        logits: ``[..., V]``, floating-point.
        smoothing: :math:`\epsilon` in [0, 1).
        class_weights: w, ``[V]``; 1 for every class if None.
        validate_args: whether to check the logits and the observed classes; torch's default if None.

    Raises:
        ValueError: ``smoothing`` is outside [0, 1), ``logits`` has no dimension, or a checked logit is NaN.

    Example:
        >>> likelihood = SmoothedCategorical(torch.tensor([0.0, 0.0]), smoothing=0.1)
        >>> likelihood.log_prob(torch.tensor(1)), likelihood.log_prob(torch.tensor([0.3, 0.7]))
        (tensor(-0.6931), tensor(-0.6931))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"logits": constraints.real_vector}

    def __init__(
        self,
        logits: Tensor,
        smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not 0 <= smoothing < 1:
            raise ValueError(f"SmoothedCategorical.smoothing: expected a number in [0, 1), got {smoothing}")
        if logits.dim() < 1:
            raise ValueError(
                "SmoothedCategorical.logits: expected a dimension of classes [..., V], got a number"
            )
        self.logits = logits
        self.smoothing = smoothing
        self.class_weights = class_weights
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
        new.smoothing, new.class_weights = self.smoothing, self.class_weights
        super(SmoothedCategorical, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mode(self) -> Tensor:
        """The most probable class, int64, of shape ``batch_shape``."""
        return self.logits.argmax(dim=-1)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws classes from p, without smoothing: int64, of shape ``sample_shape + batch_shape``."""
        return Categorical(logits=self.logits).sample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-likelihood of classes ``[...]`` (integers) or soft labels ``[..., V]`` (floats), broadcast."""
        soft = value.is_floating_point()
        if self._validate_args and not soft:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1] if soft else value.shape, self.batch_shape)
        classes = self.logits.shape[-1:]
        logits = self.logits.expand(shape + classes).reshape(-1, *classes)
        target = (
            value.expand(shape + classes).reshape(-1, *classes) if soft else value.expand(shape).reshape(-1)
        )
        loss = cross_entropy(
            logits,
            target.to(logits.dtype) if soft else target.long(),
            None if self.class_weights is None else self.class_weights.to(logits),
            reduction="none",
            label_smoothing=self.smoothing,
        )
        return -loss.reshape(shape)
