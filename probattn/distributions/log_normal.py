"""The log-normal distribution with the log-space interface of this package."""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from pyro.distributions import LogNormal as PyroLogNormal
from pyro.distributions import Normal
from torch import Tensor
from torch.distributions import ExpTransform, TransformedDistribution, constraints, register_kl
from torch.distributions import LogNormal as TorchLogNormal

from probattn.distributions.log_space import computing_dtype
from probattn.distributions.log_space_distribution import LogSpaceDistribution, as_parameters


def log_normal_loc(log_mean: Tensor, scale: float) -> Tensor:
    """E[log S] of a log-normal variable of a given log E[S]."""
    return log_mean - scale**2 / 2


def log_normal_kl(distance: Tensor, scale: Tensor | float, prior_scale: Tensor | float) -> Tensor:
    """log(s0 / s) + (s^2 + (m - m0)^2) / (2 s0^2) - 1/2, the KL of :func:`kl_lognormal_lognormal`."""
    ratio = scale / prior_scale
    logarithm = ratio.log() if isinstance(ratio, Tensor) else math.log(ratio)
    return (distance / prior_scale).square().div_(2) + ((ratio**2 - 1) / 2 - logarithm)


class LogNormalParameters(NamedTuple):
    """Mean and standard deviation of log S, unexpanded."""

    loc: Tensor
    scale: Tensor


class LogNormal(LogSpaceDistribution, PyroLogNormal):
    """Log-normal distribution, log S ~ Normal(loc, scale); a drop-in replacement for Pyro's ``LogNormal``.

    One of the posteriors of Bayesian attention modules (Fan et al. 2020, section 3.2). Draws of S are positive and
    finite, clamped to the range of the dtype; draws of log S are not clamped.

    Args:
        loc: Mean of log S; a number or a tensor, broadcastable with scale.
        scale: Standard deviation of log S, > 0.
        validate_args: Whether to check the parameters; torch's default if None.

    Raises:
        ValueError: If a parameter is invalid.
        TypeError: If the parameters are not floating-point.

    Example:
        >>> LogNormal(torch.tensor([-2.0, 0.0]), 2.0).log_mean
        tensor([0., 2.])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    unexpanded: LogNormalParameters

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None) -> None:
        mean, deviation = as_parameters(loc, scale)
        self.unexpanded = LogNormalParameters(mean, deviation)
        # Past Pyro's own constructor, which does not hand validate_args to the normal.
        normal = Normal(mean, deviation, validate_args=validate_args)
        TransformedDistribution.__init__(self, normal, ExpTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: "LogNormal | None" = None) -> "LogNormal":
        """The same distribution with a larger batch shape; the stored parameters are not expanded."""
        new: LogNormal = self._get_checked_instance(LogNormal, _instance)
        new.unexpanded = self.unexpanded
        PyroLogNormal.expand(self, torch.Size(batch_shape), _instance=new)
        return new

    @property
    def log_mean(self) -> Tensor:
        """The logarithm of the mean, log E[S] = loc + scale^2 / 2."""
        return (self.unexpanded.loc + self.unexpanded.scale.square() / 2).expand(self.batch_shape)

    @property
    def log_squared_cv(self) -> Tensor:
        """log(exp(scale^2) - 1), in the shape in which ``scale`` was given."""
        square = self.unexpanded.scale.square()
        return square + torch.log(-torch.expm1(-square))

    def log_rsample(
        self, sample_shape: Sequence[int] = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws log S = loc + scale * noise with gradients to the parameters.

        The result has the shape sample_shape + batch_shape. The standard normal noise is drawn at least in float32;
        without ``generator``, from the device's global generator.
        """
        loc, scale = self.unexpanded.loc, self.unexpanded.scale
        dtype = computing_dtype(loc)
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, dtype=dtype, device=loc.device, generator=generator)
        return torch.addcmul(loc.to(dtype), scale.to(dtype), noise).to(loc.dtype)

    def log_prob_of_log(self, log_value: Tensor) -> Tensor:
        """The log density log p(S) at S = exp(log_value): the normal log density of log_value, minus log_value."""
        return self.base_dist.log_prob(log_value) - log_value


@register_kl(TorchLogNormal, TorchLogNormal)
def kl_lognormal_lognormal(p: TorchLogNormal, q: TorchLogNormal) -> Tensor:
    """KL(LogNormal(m, s) || LogNormal(m0, s0)) = log(s0 / s) + (s^2 + (m - m0)^2) / (2 s0^2) - 1/2 in nats.

    The distributions may be classes of this package, torch or Pyro; the result has their broadcast batch shape.

    Example:
        >>> from torch.distributions import LogNormal, kl_divergence
        >>> kl_divergence(LogNormal(1.0, 1.0), LogNormal(0.0, 1.0))
        tensor(0.5000)
    """
    p_loc, p_scale = (p.unexpanded.loc, p.unexpanded.scale) if isinstance(p, LogNormal) else (p.loc, p.scale)
    q_loc, q_scale = (q.unexpanded.loc, q.unexpanded.scale) if isinstance(q, LogNormal) else (q.loc, q.scale)
    divergence = log_normal_kl(p_loc - q_loc, p_scale, q_scale)
    return divergence.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))
