"""The gamma and the Weibull distribution, in log space, and the divergence of the one from the other."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from pyro.distributions import Gamma as PyroGamma
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Gamma as TorchGamma
from torch.distributions import Weibull as TorchWeibull
from torch.distributions import constraints, register_kl
from torch.distributions.utils import lazy_property

from probattn.distributions.log_space import (
    computing_dtype,
    finite_exp,
    log_gamma_1p_reciprocal,
    log_standard_exponential,
    log_weibull_sample,
    weibull_gamma_kl,
)
from probattn.distributions.log_space_distribution import LogSpaceDistribution, as_parameters, exactly_one
from probattn.distributions.special import EULER_MASCHERONI, log_gamma_doubling_excess


class GammaParameters(NamedTuple):
    """Logarithm of alpha, and beta, unexpanded."""

    log_concentration: Tensor
    rate: Tensor


class Gamma(LogSpaceDistribution, PyroGamma):
    """Gamma distribution of concentration (shape) alpha and rate beta; a drop-in replacement for Pyro's ``Gamma``.

    p(s) = beta^alpha s^(alpha-1) exp(-beta s) / Gamma(alpha). Draws and densities are computed in log space, so alpha
    may be far below the smallest float if ``log_concentration`` is given. The parameters are stored in the shapes in
    which they were given: if these are [B, H, 1, S] and the distribution is expanded to [B, H, T, S], a divergence
    evaluates log Gamma(alpha) on [B, H, 1, S] only.

    Args:
        concentration: alpha > 0; a number or a tensor, broadcastable with rate.
        rate: beta > 0.
        log_concentration: log alpha, instead of ``concentration``.
        validate_args: Whether to check the parameters; torch's default if None.

    Raises:
        ValueError: If not exactly one of concentration and log_concentration is given, or one is invalid.
        TypeError: If the parameters are not floating-point.

    Example:
        >>> prior = Gamma(log_concentration=torch.tensor([-1e3, 0.0]), rate=2.0)
        >>> prior.log_mean
        tensor([-1.0007e+03, -6.9315e-01])
        >>> bool((prior.sample((100,)) > 0).all())
        True
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
        "log_concentration": constraints.real,
    }
    rate: Tensor
    unexpanded: GammaParameters

    def __init__(
        self,
        concentration: Tensor | float | None = None,
        rate: Tensor | float = 1.0,
        *,
        log_concentration: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, value = exactly_one("Gamma", concentration=concentration, log_concentration=log_concentration)
        shape, beta = as_parameters(value, rate)
        self.unexpanded = GammaParameters(shape.log() if name == "concentration" else shape, beta)
        batch_shape = torch.broadcast_shapes(shape.shape, beta.shape)
        setattr(self, name, shape.expand(batch_shape))
        self.rate = beta.expand(batch_shape)
        # Past torch's own constructor, which wants the concentration itself.
        torch.distributions.Distribution.__init__(self, batch_shape, validate_args=validate_args)

    @lazy_property
    def concentration(self) -> Tensor:
        """alpha, clamped from below to the smallest normal number of the dtype."""
        log_concentration = self.unexpanded.log_concentration
        tiny = torch.finfo(log_concentration.dtype).tiny
        return log_concentration.exp().clamp(min=tiny).expand(self.batch_shape)

    @lazy_property
    def log_concentration(self) -> Tensor:
        """The logarithm of alpha."""
        return self.unexpanded.log_concentration.expand(self.batch_shape)

    @property
    def log_mean(self) -> Tensor:
        """The logarithm of the mean, log alpha - log beta."""
        return (self.unexpanded.log_concentration - self.unexpanded.rate.log()).expand(self.batch_shape)

    @property
    def log_squared_cv(self) -> Tensor:
        """-log alpha, in the shape in which alpha was given."""
        return -self.unexpanded.log_concentration

    def log_rsample(
        self, sample_shape: Sequence[int] = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws log S = log G - log beta + log U / alpha with G ~ Gamma(alpha + 1, 1) and U uniform on (0, 1).

        Source: Marsaglia & Tsang 2000, section 6. Gradients with respect to the parameters are implicit (Figurnov et
        al. 2018). The result has the shape sample_shape + batch_shape; it is finite because 1 / alpha is bounded by
        exp(80), about 5.5e34. Without ``generator`` the device's global generator is used.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        dtype = computing_dtype(self.rate)
        log_concentration = self.unexpanded.log_concentration.to(dtype)
        boosted = (1 + log_concentration.exp()).expand(shape)
        uniform = torch.rand(shape, dtype=dtype, device=boosted.device, generator=generator)
        # The bound keeps log U / alpha, and its gradient, finite in float32.
        reciprocal = (-log_concentration).clamp(max=80.0).exp()
        log_uniform = uniform.clamp_(min=torch.finfo(dtype).eps).log_()
        log_gamma = torch._standard_gamma(boosted, generator).log()
        log_value = log_gamma + log_uniform * reciprocal - self.unexpanded.rate.to(dtype).log()
        return log_value.to(self.rate.dtype)

    def log_prob_of_log(self, log_value: Tensor) -> Tensor:
        """The log density log p(S) at S = exp(log_value).

        It is alpha log beta + (alpha - 1) log S - beta S - log Gamma(1 + alpha) + log alpha.
        """
        log_concentration, rate = self.unexpanded.log_concentration, self.unexpanded.rate
        concentration = log_concentration.exp()
        normaliser = concentration * rate.log() - torch.lgamma(1 + concentration) + log_concentration
        density = (concentration - 1) * log_value - rate * log_value.exp() + normaliser
        return density.expand(torch.broadcast_shapes(density.shape, self.batch_shape))


class WeibullParameters:
    """Concentration, log-scale and log-mean, unexpanded, computed once on demand; ``name`` tells which ``value`` is."""

    def __init__(self, name: str, value: Tensor, concentration: Tensor) -> None:
        self.concentration = concentration
        if name == "log_mean":
            self.log_mean = value
        else:
            self.log_scale = value.log() if name == "scale" else value

    @cached_property
    def log_scale(self) -> Tensor:
        """The logarithm of lambda."""
        with torch.enable_grad():
            return self.log_mean - log_gamma_1p_reciprocal(self.concentration)

    @cached_property
    def log_mean(self) -> Tensor:
        """The logarithm of the mean."""
        with torch.enable_grad():
            return self.log_scale + log_gamma_1p_reciprocal(self.concentration)


class Weibull(LogSpaceDistribution, TorchDistribution):
    r"""Weibull distribution of scale lambda and concentration (shape) k.

    p(s) = (k / lambda) (s / lambda)^(k-1) exp(-(s / lambda)^k); log S = log lambda + log E / k with E ~ Exponential(1)
    (Zhang et al. 2021a, section 3.2). Exactly one of scale, log_scale and log_mean must be given. Draws and densities
    are computed in log space, so logarithms are correct where S itself would overflow or underflow. The parameters are
    stored in the shapes in which they were given (attribute ``unexpanded``); a concentration shared by all elements
    costs a single log-gamma.

    Args:
        scale: lambda > 0; a number or a tensor, broadcastable with concentration.
        concentration: k > 0; required.
        log_scale: log lambda, instead of ``scale``.
        log_mean: log E[S] = log lambda + log Gamma(1 + 1/k), instead of ``scale``.
        validate_args: Whether to check the parameters; torch's default if None.

    Raises:
        ValueError: If not exactly one of scale, log_scale and log_mean is given, no concentration is given, or a
            parameter is invalid.
        TypeError: If the parameters are not floating-point.

    Example:
        >>> posterior = Weibull(log_mean=torch.zeros(3), concentration=2.0)
        >>> posterior.mean
        tensor([1., 1., 1.])
        >>> posterior.log_scale
        tensor([0.1208, 0.1208, 0.1208])
        >>> posterior.log_rsample((5,)).shape
        torch.Size([5, 3])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "scale": constraints.positive,
        "concentration": constraints.positive,
        "log_scale": constraints.real,
        "log_mean": constraints.real,
    }
    concentration: Tensor

    def __init__(
        self,
        scale: Tensor | float | None = None,
        concentration: Tensor | float | None = None,
        *,
        log_scale: Tensor | float | None = None,
        log_mean: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, value = exactly_one("Weibull", scale=scale, log_scale=log_scale, log_mean=log_mean)
        if concentration is None:
            raise ValueError(f"Weibull expected a concentration beside {name}, got none")
        location, shape = as_parameters(value, concentration)
        self.unexpanded = WeibullParameters(name, location, shape)
        batch_shape = torch.broadcast_shapes(location.shape, shape.shape)
        self.concentration = shape.expand(batch_shape)
        setattr(self, name, location.expand(batch_shape))
        super().__init__(batch_shape, validate_args=validate_args)

    @lazy_property
    def scale(self) -> Tensor:
        """lambda, clamped to the positive finite numbers of the dtype."""
        return finite_exp(self.unexpanded.log_scale).expand(self.batch_shape)

    @lazy_property
    def log_scale(self) -> Tensor:
        """The logarithm of lambda."""
        return self.unexpanded.log_scale.expand(self.batch_shape)

    @lazy_property
    def log_mean(self) -> Tensor:
        """The logarithm of the mean, log lambda + log Gamma(1 + 1/k), or ``log_mean`` as given to the constructor."""
        return self.unexpanded.log_mean.expand(self.batch_shape)

    @property
    def log_squared_cv(self) -> Tensor:
        """log(Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 - 1), in the shape in which k was given; the ratio may overflow."""
        concentration = self.unexpanded.concentration
        excess = log_gamma_doubling_excess(concentration.to(computing_dtype(concentration)).reciprocal())
        return (excess + torch.log(-torch.expm1(-excess))).to(concentration.dtype)

    @property
    def mode(self) -> Tensor:
        """The mode: lambda ((k - 1) / k)^(1/k) for k > 1, else 0."""
        concentration = self.concentration
        inside = concentration > 1
        safe = torch.where(inside, concentration, 2.0)
        log_mode = self.log_scale + torch.log1p(-1 / safe) / safe
        return torch.where(inside, finite_exp(log_mode), 0.0)

    def log_rsample(
        self, sample_shape: Sequence[int] = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws log S by inversion of the distribution function, with gradients to the parameters.

        The result has the shape sample_shape + batch_shape. The uniform noise is drawn at least in float32; without
        ``generator``, from the device's global generator.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        log_scale, concentration = self.unexpanded.log_scale, self.unexpanded.concentration
        dtype = computing_dtype(concentration)
        noise = log_standard_exponential(shape, dtype=dtype, device=concentration.device, generator=generator)
        return log_weibull_sample(log_scale, concentration, noise).to(concentration.dtype)

    def log_prob_of_log(self, log_value: Tensor) -> Tensor:
        """The log density at S = exp(log_value): log k - log S + z - exp(z) with z = k (log S - log lambda)."""
        exponent = self.unexpanded.concentration * (log_value - self.log_scale)
        # Where exp(z) is infinite the density is 0. Its gradient would be infinite too, and a mask cannot undo that.
        limit = math.log(torch.finfo(exponent.dtype).max)
        tail = torch.where(exponent > limit, torch.inf, exponent.clamp(max=limit).exp())
        return self.unexpanded.concentration.log() - log_value + exponent.clamp(max=limit) - tail

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function P(S <= value) = 1 - exp(-(value / lambda)^k)."""
        if self._validate_args:
            self._validate_sample(value)
        return -torch.expm1(-torch.exp(self.concentration * (value.log() - self.log_scale)))

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile lambda (-log(1 - p))^(1/k) of a probability p, ``value``."""
        return torch.exp(self.log_scale + torch.log(-torch.log1p(-value)) / self.concentration)

    def entropy(self) -> Tensor:
        """Differential entropy in nats: g (1 - 1/k) + log lambda - log k + 1, g the Euler-Mascheroni constant."""
        concentration = self.unexpanded.concentration
        shape_term = EULER_MASCHERONI * (1 - concentration.reciprocal()) - concentration.log() + 1
        return self.log_scale + shape_term


@register_kl(Weibull, TorchGamma)
@register_kl(TorchWeibull, TorchGamma)
def kl_weibull_gamma(p: Weibull | TorchWeibull, q: TorchGamma) -> Tensor:
    """KL(Weibull(k, lambda) || Gamma(alpha, beta)) in nats, by :func:`probattn.distributions.weibull_gamma_kl`.

    ``p`` and ``q`` may be classes of this package, torch or Pyro; the result has their broadcast batch shape.

    Example:
        >>> from torch.distributions import Gamma, Weibull, kl_divergence
        >>> kl_divergence(Weibull(1.0, 1.0), Gamma(1.0, 2.0))
        tensor(0.3069)
    """
    if isinstance(p, Weibull):
        log_mean, log_scale = p.unexpanded.log_mean, p.unexpanded.log_scale
        concentration = p.unexpanded.concentration
    else:
        concentration, log_scale = p.concentration, p.scale.log()
        log_mean = log_scale + log_gamma_1p_reciprocal(concentration)
    if isinstance(q, Gamma):
        log_alpha, rate = q.unexpanded.log_concentration, q.unexpanded.rate
    else:
        log_alpha, rate = q.concentration.log(), q.rate
    divergence = weibull_gamma_kl(log_mean, log_scale, concentration, log_alpha, rate)
    return divergence.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))
