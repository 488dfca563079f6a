"""The gamma distribution, in log space."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from pyro.distributions import Gamma as PyroGamma
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from probattn.distributions.log_space import computing_dtype
from probattn.distributions.log_space_distribution import LogSpaceDistribution, as_parameters, exactly_one


class GammaParameters(NamedTuple):
    """Logarithm of alpha, and beta, unexpanded."""

    log_concentration: Tensor
    rate: Tensor


class Gamma(LogSpaceDistribution, PyroGamma):
    """Gamma distribution of concentration (shape) alpha and rate beta; a drop-in for Pyro's.

    p(s) = beta^alpha s^(alpha-1) exp(-beta s) / Gamma(alpha). Exactly one of concentration and log_concentration
    is given. Concentrations far below the smallest float are meaningful: draws and densities are computed in
    log space, and the parameters stay unexpanded underneath, so that a divergence evaluates log Gamma(alpha) on
    [B,H,1,S] when the batch shape has been expanded to [B,H,T,S].

    Args:
        concentration: alpha > 0; a number or a tensor, broadcastable with rate.
        rate: beta > 0.
        log_concentration: log alpha.
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

    def expand(self, batch_shape: Sequence[int], _instance: "Gamma | None" = None) -> "Gamma":
        """The same distribution with a larger batch shape; parameters stay unexpanded underneath."""
        new: Gamma = self._get_checked_instance(Gamma, _instance)
        return self._expand_into(new, batch_shape)

    @lazy_property
    def concentration(self) -> Tensor:
        """alpha, no smaller than the smallest normal number of the dtype."""
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
        """-log alpha, of alpha's own shape."""
        return -self.unexpanded.log_concentration

    def log_rsample(
        self, sample_shape: Sequence[int] = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws log S = log G - log beta + log U / alpha with G ~ Gamma(alpha + 1, 1), U uniform.

        (Marsaglia & Tsang 2000, section 6.) Gradients are implicit (Figurnov et al. 2018). The result has the shape
        sample_shape + batch_shape and is finite: 1/alpha saturates at 1e34. Without a generator the device's global
        one is used.
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
        """The density log p(S) at S = exp(log_value).

        alpha log beta + (alpha - 1) log S - beta S - log Gamma(1 + alpha) + log alpha.
        """
        log_concentration, rate = self.unexpanded.log_concentration, self.unexpanded.rate
        concentration = log_concentration.exp()
        normaliser = concentration * rate.log() - torch.lgamma(1 + concentration) + log_concentration
        density = (concentration - 1) * log_value - rate * log_value.exp() + normaliser
        return density.expand(torch.broadcast_shapes(density.shape, self.batch_shape))
