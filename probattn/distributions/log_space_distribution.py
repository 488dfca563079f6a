"""The base of the positive distributions of this package, and samples that carry their logarithm or weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from probattn.distributions.log_space import finite_exp

_ATTRIBUTE = "_probattn_log"
_WEIGHTS = "_probattn_weights"


def exp_carrying_log(log_value: Tensor) -> Tensor:
    """exp(log_value), saturated to the positive finite numbers of its type, with ``log_value`` attached."""
    value = finite_exp(log_value)
    setattr(value, _ATTRIBUTE, log_value)
    return value


def carried_log(value: Tensor) -> Tensor:
    """The logarithm that a positive tensor carries, else ``value.log()``; arithmetic, ``detach`` and copies lose it."""
    log_value = getattr(value, _ATTRIBUTE, None)
    return value.log() if log_value is None else log_value


def carries_log(value: Tensor) -> bool:
    """True if a tensor came from :func:`exp_carrying_log` and still has its logarithm."""
    return hasattr(value, _ATTRIBUTE)


def carry_weights(value: Tensor, weights: Tensor, mask: Any) -> Tensor:
    """Attaches to S the weights W that it is known to give under ``mask``; returns ``value`` itself."""
    setattr(value, _WEIGHTS, (weights, mask))
    return value


def carried_weights(value: Tensor, mask: Any) -> Tensor | None:
    """The weights that S carries, if it carries any that were made under this mask."""
    weights, carried_mask = getattr(value, _WEIGHTS, (None, None))
    return weights if carried_mask is mask else None


class LogSpaceDistribution(Distribution):
    """Base class of distributions on (0, inf) whose draws and densities are computed through the logarithm.

    Draws of S, means, variances and standard deviations are clamped to the positive finite numbers of their dtype;
    draws of log S, from :meth:`log_rsample`, are not clamped. A subclass implements :meth:`log_rsample`,
    :meth:`log_prob_of_log`, :attr:`log_mean` and :attr:`log_squared_cv`.
    """

    support = constraints.positive
    has_rsample = True
    unexpanded: Any

    @property
    @abstractmethod
    def log_mean(self) -> Tensor:
        """The logarithm of the mean; its shape is the batch shape."""

    @property
    @abstractmethod
    def log_squared_cv(self) -> Tensor:
        """The logarithm of Var[S] / E[S]^2, the squared coefficient of variation, broadcastable to the batch shape."""

    @property
    def log_variance(self) -> Tensor:
        """The logarithm of the variance; its shape is the batch shape."""
        return 2 * self.log_mean + self.log_squared_cv

    @abstractmethod
    def log_rsample(
        self, sample_shape: Sequence[int] = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws log S with gradients to the parameters; shape sample_shape + batch_shape."""

    @abstractmethod
    def log_prob_of_log(self, log_value: Tensor) -> Tensor:
        """The log density log p(S) at S = exp(log_value). Adding log_value gives the log density of log S."""

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same distribution with a larger batch shape; the stored parameters are not expanded."""
        new: Self = self._get_checked_instance(type(self), _instance)
        new.unexpanded = self.unexpanded
        for name in self.arg_constraints:
            if name in self.__dict__:
                setattr(new, name, self.__dict__[name].expand(batch_shape))
        Distribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The mean, clamped to the positive finite numbers of the dtype."""
        return finite_exp(self.log_mean)

    @property
    def variance(self) -> Tensor:
        """The variance, clamped to the positive finite numbers of the dtype."""
        return finite_exp(self.log_variance)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation, clamped to the positive finite numbers of the dtype."""
        return finite_exp(self.log_variance / 2)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws S without gradients, positive and finite; shape sample_shape + batch_shape."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws S with gradients to the parameters, positive and finite; shape sample_shape + batch_shape."""
        return exp_carrying_log(self.log_rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density log p(S) at a positive S, ``value``, whose shape is broadcast with the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        return self.log_prob_of_log(carried_log(value))


def as_parameters(*values: Tensor | float) -> tuple[Tensor, ...]:
    """Unexpanded tensors of one promoted floating dtype; numbers take dtype and device of the tensors."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    device = tensors[0].device if tensors else None
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors] or [torch.get_default_dtype()])
    if not dtype.is_floating_point:
        raise TypeError(f"expected floating-point parameters, got {dtype}: convert them, e.g. with .float()")
    return tuple(
        value.to(dtype) if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype, device=device)
        for value in values
    )


def exactly_one(owner: str, **values: Any) -> tuple[str, Any]:
    """The one of the named values that is not None."""
    arguments = [(name, value) for name, value in values.items() if value is not None]
    if len(arguments) != 1:
        names = " or ".join(values)
        got = " and ".join(name for name, _ in arguments) or "none of them"
        raise ValueError(f"{owner} expected exactly one of {names}, got {got}")
    return arguments[0]
