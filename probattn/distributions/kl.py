"""Kullback-Leibler divergences in closed form, registered with torch.distributions.kl_divergence.

Weibull || Gamma (Zhang et al. 2021, section 3.2) for this package's classes and torch's, of which Pyro's are
subclasses.
LogNormal || LogNormal is the divergence of the normals; torch finds it for its own pairs by way of
TransformedDistribution, here it runs on unexpanded parameters.
"""

import torch
from torch import Tensor
from torch.distributions import Gamma as TorchGamma
from torch.distributions import LogNormal as TorchLogNormal
from torch.distributions import Weibull as TorchWeibull
from torch.distributions import register_kl

from probattn.distributions.gamma import Gamma
from probattn.distributions.log_normal import LogNormal, log_normal_kl
from probattn.distributions.log_space import log_gamma_1p_reciprocal, weibull_gamma_kl
from probattn.distributions.weibull import Weibull


@register_kl(Weibull, TorchGamma)
@register_kl(TorchWeibull, TorchGamma)
def kl_weibull_gamma(p: Weibull | TorchWeibull, q: TorchGamma) -> Tensor:
    """KL(Weibull(k, lambda) || Gamma(alpha, beta)) in nats, by :func:`probattn.distributions.weibull_gamma_kl`.

    Args:
        p: A Weibull distribution of this package, torch or Pyro.
        q: A gamma distribution of this package, torch or Pyro.

    Returns:
        The divergence, of the broadcast batch shape.

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


@register_kl(TorchLogNormal, TorchLogNormal)
def kl_lognormal_lognormal(p: TorchLogNormal, q: TorchLogNormal) -> Tensor:
    """KL(LogNormal(m, s) || LogNormal(m0, s0)) = log(s0 / s) + (s^2 + (m - m0)^2) / (2 s0^2) - 1/2 in nats.

    Args:
        p: A log-normal distribution of this package, torch or Pyro.
        q: Another.

    Returns:
        The divergence, of the broadcast batch shape.

    Example:
        >>> from torch.distributions import LogNormal, kl_divergence
        >>> kl_divergence(LogNormal(1.0, 1.0), LogNormal(0.0, 1.0))
        tensor(0.5000)
    """
    p_loc, p_scale = (p.unexpanded.loc, p.unexpanded.scale) if isinstance(p, LogNormal) else (p.loc, p.scale)
    q_loc, q_scale = (q.unexpanded.loc, q.unexpanded.scale) if isinstance(q, LogNormal) else (q.loc, q.scale)
    divergence = log_normal_kl(p_loc - q_loc, p_scale, q_scale)
    return divergence.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))
