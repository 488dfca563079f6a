r"""The Weibull posterior of unnormalised attention weights, as functions of tensors (Zhang et al. 2021, section 3.2).

With :math:`\mu = \log E[S]`, r what the upward path gives, u uniform noise and g the Euler-Mascheroni constant:

.. math::
    k &= e^{\mu} + \mathrm{floor} + \rho r, \qquad \log\lambda = \mu - \log\Gamma(1 + 1/k) \\
    \log S &= \log\lambda + \log(-\log u) / k \\
    \mathrm{KL} &= \underbrace{\alpha\,(g / k - \log\lambda) + \log k + \beta e^{\mu}}_{\text{of the draw}}
        + \underbrace{\log\Gamma(\alpha) - \alpha\log\beta - g - 1}_{\text{of the prior alone}}

:func:`draw_terms` and :func:`draw_gradients` are the forward and the backward sweep of a learned concentration,
:func:`scaled_draw` is a draw for a prediction. They work in place on pieces of a map, and
:func:`probattn.sites.fused.site_kernel` makes one kernel of each. The other functions can be differentiated by
autograd, within a graph of ``torch.compile`` too. The divergence of any Weibull from any gamma distribution is
:func:`probattn.distributions.weibull_gamma_kl`, whose terms these functions share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.distributions.log_space import (
    finite_exp,
    gamma_terms,
    negative_expected_log,
    standard_exponential,
)
from probattn.distributions.special import (
    EULER_MASCHERONI,
    RECIPROCAL_GAMMA_BOUNDS,
    digamma_1p,
    log_gamma_1p,
    log_gamma_and_digamma_1p,
    reciprocal_gamma_1p,
)
from probattn.sites.bayesian import BayesianAttention

NOISE_RANGE = (-40.0, 4.0)  # where log(-log u) lies for all numbers u of a draw, float32 or float64


@dataclass(frozen=True)
class WeibullConstants:
    """Numbers of a learned Weibull posterior and its gamma prior: rho, the floor of k, and the rate beta."""

    rho: float
    floor: float
    rate: float

    @classmethod
    def of(cls, method: BayesianAttention, dtype: torch.dtype) -> WeibullConstants:
        """Those of the options; a rate of 0 where that is learned."""
        # Without a floor k has one above which the gradient of log Gamma(1 + 1/k) is in the range of the type.
        rate = 0.0 if method.learns_strength else method.prior_rate
        return cls(method.rho, method.floor or torch.finfo(dtype).tiny ** 0.25, rate)

    def inverse_bound(self, smallest: float) -> float | None:
        """A bound of 1 / k, one of ``reciprocal_gamma_1p``'s, from the upward path's smallest number, or None."""
        smallest_k = self.rho * smallest + self.floor
        return next((bound for bound in RECIPROCAL_GAMMA_BOUNDS if smallest_k * bound >= 1), None)


class Drawn(NamedTuple):
    """What the gradient of a draw follows from, ``[B, H, T, S]``."""

    log_mean: Tensor
    rise: Tensor | None  # what the upward path gives; None where k does not depend on it
    value: Tensor  # the weights W, or log(-log u) of a draw that was not normalised
    log_sum: Tensor | None  # of S over keys [B, H, T, 1]; None for a draw that was not normalised


def concentration(mean: Tensor, rise: Tensor | None, constants: WeibullConstants) -> Tensor:
    """k from E[S] and what the upward path gives."""
    k = mean + constants.floor
    return k if rise is None else k.add_(rise, alpha=constants.rho)


def site_concentration(method: BayesianAttention, mean: Tensor, rise: Tensor | None) -> Tensor:
    """k of the options: learned, or a number."""
    if isinstance(method.concentration, str):
        return concentration(mean, rise, WeibullConstants.of(method, mean.dtype))
    return mean.new_full((), method.concentration)


def raised_log_scale(log_scale: Tensor, extra: Tensor, sigma: float) -> Tensor:
    r"""log lambda where the upward path adds :math:`\sigma\,\mathrm{softplus}(f_\lambda(h))` to lambda."""
    return torch.logaddexp(log_scale, extra.clamp_min(torch.finfo(extra.dtype).tiny).log() + math.log(sigma))


def constant_surprise(k: float) -> float:
    r""":math:`\mu - E[\log S] = g / k + \log\Gamma(1 + 1/k)` of a constant k."""
    return EULER_MASCHERONI / k + math.lgamma(1 + 1 / k)


def constant_terms(log_mean: Tensor, log_alpha: Tensor, k: float, rate: float) -> tuple[Tensor, Tensor]:
    """The KL of a constant k, all terms, and its gradient by log alpha; without autograd."""
    alpha = log_alpha.exp()
    pull = (constant_surprise(k) - math.log(rate)) - log_mean
    slope = (pull + digamma_1p(alpha)).mul_(alpha).sub_(1)
    constants = gamma_terms(log_alpha, alpha, log_gamma_1p(alpha), 0.0) + math.log(k)
    terms = pull.mul_(alpha).add_(finite_exp(log_mean), alpha=rate).add_(constants)
    return terms, slope


def constant_slope(log_mean: Tensor, alpha: Tensor, rate: float) -> Tensor:
    """Gradient of the same by log E[S]; without autograd."""
    return finite_exp(log_mean).mul_(rate).sub_(alpha)


def prior_terms(log_alpha: Tensor, log_rate: Tensor, weight: Tensor | None, shape: torch.Size) -> Tensor:
    """The KL's terms of the prior alone, summed, ``[B]``; ``weight`` are 0/1 factors that broadcast to ``shape``."""
    alpha = log_alpha.exp()
    terms = gamma_terms(log_alpha, alpha, torch.lgamma(1 + alpha), log_rate)
    ones = log_alpha.new_ones(()) if weight is None else weight
    ones = ones.expand(shape) if log_alpha.shape[2] > 1 else ones.expand(shape).sum(dim=2, keepdim=True)
    return (terms * ones).sum(dim=(1, 2, 3))


def draw_terms(
    log_mean: Tensor,
    rise: Tensor | None,
    uniform: Tensor,
    value: Tensor | None,
    constants: WeibullConstants,
    with_kl: bool,
) -> tuple[Tensor, Tensor] | None:
    """Writes log S into ``value`` and log(-log u) over u, or log S over u for None; -E[log S] and log k + rate E[S]."""
    # The draw's terms of the KL are alpha times the one plus the other.
    mean = finite_exp(log_mean)
    k = concentration(mean, rise, constants)
    inverse = k.reciprocal()
    log_scale = log_gamma_1p(inverse).neg_().add_(log_mean)
    noise = standard_exponential(uniform).log_()
    torch.addcmul(log_scale, noise, inverse, out=uniform if value is None else value)
    if not with_kl:
        return None
    surprise = negative_expected_log(log_scale, inverse, overwrite=True)
    return surprise, k.log_().add_(mean, alpha=constants.rate)


def draw_gradients(
    drawn: Drawn,
    pulls: tuple[Tensor | None, Tensor | None, Tensor | None],
    centre: Tensor | None,
    grads: tuple[Tensor, Tensor | None],
    constants: WeibullConstants,
) -> None:
    """Writes the gradients of a draw and its KL by ``log_mean`` and ``rise``."""
    # ``pulls`` are the gradient of log S, or that of W times W, overwritten, whose sum over keys is ``centre``; the
    # gradient of the KL times its 0/1 factors, w; and alpha. With l, e the gradients by log lambda and by 1 / k:
    # l = d(log S) - w alpha, e = d(log S) log(-log u) + w alpha g - l psi(1 + 1/k), d(k) = w / k - e / k^2,
    # d(rise) = rho d(k), d(log_mean) = l + (d(k) + w beta) E[S].
    (pull, share, alpha), (grad_mean, grad_rise) = pulls, grads
    mean = finite_exp(drawn.log_mean)
    k = concentration(mean, drawn.rise, constants)
    inverse = k.reciprocal()
    if drawn.log_sum is None:
        log_gamma, digamma = inverse, digamma_1p(inverse)
    else:
        log_gamma, digamma = log_gamma_and_digamma_1p(inverse)
    if pull is None:
        to_scale, to_inverse = torch.zeros_like(k), torch.zeros_like(k)
    elif drawn.log_sum is None or centre is None:
        to_scale, to_inverse = pull.clone(), pull * drawn.value
    else:
        weights = drawn.value
        to_scale = pull.addcmul_(weights, centre, value=-1)
        noise = weights.clamp_min(torch.finfo(weights.dtype).tiny).log_().add_(drawn.log_sum)
        noise.sub_(drawn.log_mean).add_(log_gamma).mul_(k).clamp_(*NOISE_RANGE)
        to_inverse = noise.mul_(to_scale)
    if share is not None and alpha is not None:
        by_kl = share * alpha
        to_scale.sub_(by_kl)
        to_inverse.add_(by_kl, alpha=EULER_MASCHERONI)
    to_inverse.addcmul_(to_scale, digamma, value=-1.0)
    to_k = to_inverse.mul_(inverse).mul_(inverse).neg_()
    if share is not None:
        to_k.addcmul_(inverse, share)
    if grad_rise is not None:
        torch.mul(to_k, constants.rho, out=grad_rise)
    if share is not None:
        to_k.add_(share, alpha=constants.rate)
    torch.addcmul(to_scale, to_k, mean, out=grad_mean)


def scaled_draw(
    mean: Tensor, rise: Tensor, uniform: Tensor, constants: WeibullConstants, bound: float
) -> None:
    r"""Writes :math:`S = E[S]\,(-\log u)^{1/k} / \Gamma(1 + 1/k)` in place of u, for 1 / k of at most ``bound``."""
    inverse = concentration(mean, rise, constants).reciprocal_()
    power = standard_exponential(uniform).log2_().mul_(inverse).exp2_()
    power.mul_(mean).mul_(reciprocal_gamma_1p(inverse, bound))
