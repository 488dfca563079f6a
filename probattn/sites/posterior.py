"""The posterior of one attention call: its distribution, draws from it and its KL to the prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn import functional as F

from probattn.distributions import Gamma, LogNormal, Weibull, log_gamma_1p_reciprocal, log_weibull_sample
from probattn.distributions.carried import carry_weights, exp_carrying_log
from probattn.distributions.special import EULER_MASCHERONI
from probattn.sites.bayesian import BayesianAttention, KLReduction
from probattn.sites.drawing import draw_weights
from probattn.sites.fused import WeibullOptions, draw_weibull
from probattn.sites.masks import AttentionMask
from probattn.sites.noise import Noise
from probattn.sites.scores import normalise
from probattn.sites.shared import SharedUpward, UpwardOutputs

TRUNCATION = (0.1, 0.9)
"""Range of the uniform noise in Zhang et al. 2021, section 3.3."""


@dataclass(frozen=True)
class PosteriorInputs:
    """What the attention scores and the upward path say about q(S), before any special function.

    Attributes:
        raw: masked scores ``[B, H, T, S]``.
        upward: what the upward path says at this call, of the same shape or that of one draw.
        log_softmax: normalises the scores; None leaves them raw.
        valid: bool, broadcastable to the scores, True where the query may attend to the key; None for all pairs.
    """

    raw: Tensor
    upward: UpwardOutputs
    log_softmax: Callable[[Tensor], Tensor] | None = None
    valid: Tensor | None = None

    @cached_property
    def scores(self) -> Tensor:
        """Phi, raw or normalised, masked; exp(Phi) is E[S] when sigma is 0."""
        return self.raw if self.log_softmax is None else self.log_softmax(self.raw)

    @cached_property
    def concentration(self) -> Tensor | None:
        """f_k(h), of the scores' shape; None where k does not depend on the upward path."""
        return _repeat(self.upward.concentration, len(self.raw))

    @cached_property
    def scale(self) -> Tensor | None:
        """f_lambda(h), of the scores' shape; None where lambda does not depend on the upward path."""
        return _repeat(self.upward.scale, len(self.raw))

    def distribution(self, method: BayesianAttention) -> Weibull | LogNormal:
        """q(S) with these options, batch shape that of the scores.

        Forbidden pairs have a score of 0: what follows from a masked score overflows in the divergence or its gradient,
        and no factor of 0 undoes that.
        """
        phi = self.scores if self.valid is None else torch.where(self.valid, self.scores, 0.0)
        if method.posterior == "lognormal":
            spread = phi.new_full((), method.scale)
            return LogNormal(phi - method.scale**2 / 2, spread, validate_args=False)
        if isinstance(method.concentration, str):
            k = phi.exp() + least_concentration(method, phi.dtype)
            if self.concentration is not None:
                k = k + method.rho * F.softplus(self.concentration)
        else:
            k = phi.new_full((), method.concentration)
        if self.scale is None:
            return Weibull(log_mean=phi, concentration=k, validate_args=False)
        extra = F.softplus(self.scale).clamp_min(torch.finfo(phi.dtype).tiny).log() + math.log(method.sigma)
        log_scale = torch.logaddexp(phi - log_gamma_1p_reciprocal(k), extra)
        return Weibull(log_scale=log_scale, concentration=k, validate_args=False)


def least_concentration(method: BayesianAttention, dtype: torch.dtype) -> float:
    """The floor of k; without one, a number above which the gradient of log Gamma(1 + 1/k) is in the type's range."""
    return method.floor or torch.finfo(dtype).tiny ** 0.25


def weibull_options(method: BayesianAttention, dtype: torch.dtype) -> WeibullOptions:
    """The numbers of a learned Weibull posterior and its prior."""
    return WeibullOptions(method.rho, least_concentration(method, dtype), method.rate)


def _repeat(tensor: Tensor | None, rows: int) -> Tensor | None:
    """The rows of one draw, once for every draw."""
    if tensor is None or len(tensor) == rows:
        return tensor
    return tensor.repeat(rows // len(tensor), *[1] * (tensor.dim() - 1))


class SitePosterior:
    """q(S) of one attention call, handed to the guide through the site's ``infer`` dictionary.

    Nothing is computed before it is asked for: a model traced without a guide never pays for its posterior.

    Args:
        method: the options.
        make: computes what the posterior is made of, batch shape ``[B, H, T, S]``.
        prior: the prior, same batch shape.
        mask: validity of the pairs.
    """

    def __init__(
        self,
        method: BayesianAttention,
        make: Callable[[SharedUpward | None, int], PosteriorInputs],
        prior: Gamma | LogNormal,
        mask: AttentionMask | None,
    ) -> None:
        self.method = method
        self.prior = prior
        self.mask = mask
        self._make = make
        self._shared: SharedUpward | None = None
        self._draws = 1
        self._kl: Tensor | None = None

    @cached_property
    def inputs(self) -> PosteriorInputs:
        """What the posterior is made of."""
        return self._make(self._shared, self._draws)

    @cached_property
    def distribution(self) -> Weibull | LogNormal:
        """q(S) of every pair, unmasked."""
        return self.inputs.distribution(self.method)

    def event(self) -> TorchDistributionMixin:
        """q(S) as Pyro sees it: forbidden pairs and padded queries masked, batch shape ``[B]``."""
        return as_event(self.distribution, self.mask)

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws S with its logarithm carried along.

        Args:
            noise: where the random numbers come from.
            with_kl: whether the KL will be asked for, so that it is computed in the same sweep.

        Returns:
            S > 0, ``[B, H, T, S]``, differentiable in the posterior's parameters.
        """
        return exp_carrying_log(self.log_draw(noise, with_kl=with_kl))

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """Draws S for a prediction, without gradients or KL.

        Args:
            noise: where the random numbers come from; it knows how many draws are folded into the batch.
            shared: what the draws of this batch have in common.

        Returns:
            S, ``[P * B, H, T, S]``, which carries its logarithm or its weights along.
        """
        self._shared, self._draws = shared, noise.draws
        drawn = self._draw_weights(noise)
        return self.draw(noise, with_kl=False) if drawn is None else drawn

    def _draw_weights(self, noise: Noise) -> Tensor | None:
        """S with its weights, for the options of the default and others close to it."""
        inputs, method = self.inputs, self.method
        if torch.is_grad_enabled() or method.scores == "raw" or inputs.raw.dtype != torch.float32:
            return None
        positive = inputs.upward.positive
        if positive is None or inputs.upward.scale is not None:
            return None
        uniform = self._uniform(noise, inputs.raw)
        value, weights = draw_weights(inputs.raw, positive, uniform, weibull_options(method, uniform.dtype))
        if self.mask is not None and self.mask.has_empty_rows:
            weights *= self.mask.row_weight
        return carry_weights(value, weights, self.mask)

    def log_draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws log S; "truncated" noise lives here, not in the distribution, whose ``rsample`` is exact."""
        like = self.inputs.scores
        if self.method.posterior == "lognormal":
            posterior = cast(LogNormal, self.distribution)
            return posterior.loc + posterior.scale * noise.normal(like)
        uniform = self._uniform(noise, like)
        if self.method.concentration == "learned" and self.inputs.scale is None:
            return self._fused_log_draw(uniform, with_kl)
        weibull = cast(Weibull, self.distribution)
        log_exponential = uniform.clamp_(min=torch.finfo(uniform.dtype).eps).log_().neg_().log_()
        return log_weibull_sample(weibull.log_scale, weibull.unexpanded.concentration, log_exponential)

    def _uniform(self, noise: Noise, like: Tensor) -> Tensor:
        uniform = noise.uniform(like)
        if self.method.noise == "truncated":
            low, high = TRUNCATION
            uniform.mul_(high - low).add_(low)
        return uniform

    def kl(self) -> Tensor:
        """KL(q || prior) in nats, summed over the valid pairs of real queries: ``[B]``."""
        if self._kl is not None:
            return self._kl
        elementwise = kl_divergence(self.distribution, self.prior)  # [B, H, T, S]
        if self.mask is not None:
            elementwise = torch.where(self.mask.pair_valid, elementwise, 0.0)
        return elementwise.sum(dim=(1, 2, 3))

    def _fused_log_draw(self, uniform: Tensor, with_kl: bool) -> Tensor:
        """Draw, KL and concentration in one sweep; they replace what the distributions would compute."""
        phi, mixed, method = self.inputs.scores, self.inputs.concentration, self.method
        log_alpha = cast(Gamma, self.prior).unexpanded.log_concentration
        weight = None if self.mask is None else self.mask.pair_weight.to(phi.dtype)
        options = weibull_options(method, phi.dtype)
        drawn = draw_weibull(phi, mixed, uniform, log_alpha.exp() if with_kl else None, weight, options)
        if with_kl:
            self._kl = drawn.kl + prior_terms(log_alpha, method.rate, weight, phi.shape)
        self.distribution = Weibull(log_mean=phi, concentration=drawn.concentration, validate_args=False)
        return drawn.log_value

    def weights(self, log_value: Tensor) -> Tensor:
        """Attention weights W from log S, of the same shape."""
        return normalise(log_value, self.mask)

    def reduction_factor(self) -> Tensor | float:
        """What the summed KL is multiplied by: 1 for "sum", else one over the number of pairs or queries, ``[B]``."""
        return reduction_factor(self.method.kl_reduction, self.prior.batch_shape, self.mask, self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Type of S."""
        return self.prior.unexpanded[0].dtype


def prior_terms(log_alpha: Tensor, rate: float, weight: Tensor | None, shape: torch.Size) -> Tensor:
    r"""The KL's terms of the prior alone: sum of :math:`\log\Gamma(\alpha) - \alpha\log\beta - g - 1`, ``[B]``.

    Args:
        log_alpha: log concentration, broadcastable to ``shape``, unexpanded.
        rate: beta.
        weight: 0/1 factors of the pairs, broadcastable; None for 1.
        shape: ``[B, H, T, S]``.
    """
    alpha = log_alpha.exp()
    terms = torch.lgamma(1 + alpha) - log_alpha - alpha * math.log(rate) - (EULER_MASCHERONI + 1)
    ones = log_alpha.new_ones(()) if weight is None else weight
    ones = ones.expand(shape) if log_alpha.shape[2] > 1 else ones.expand(shape).sum(dim=2, keepdim=True)
    return (terms * ones).sum(dim=(1, 2, 3))


def as_event(distribution: Weibull | LogNormal | Gamma, mask: AttentionMask | None) -> TorchDistributionMixin:
    """Masks a distribution of batch shape ``[B, H, T, S]`` and makes ``[H, T, S]`` its event."""
    masked = distribution if mask is None else distribution.mask(mask.pair_valid)
    event: TorchDistributionMixin = masked.to_event(3)
    return event


def reduction_factor(
    reduction: KLReduction, shape: torch.Size, mask: AttentionMask | None, dtype: torch.dtype
) -> Tensor | float:
    """Factor from the KL summed over a call to its reduced form, per datum.

    Args:
        reduction: "sum" gives 1; "keys" one over the number of real queries times heads; "mean" one over the number
            of valid pairs.
        shape: ``[B, H, T, S]`` of the call.
        mask: validity of the pairs.
        dtype: of the factor.

    Returns:
        A number, or ``[B]`` under a mask. A datum without any valid pair gets 1 (its KL is 0).
    """
    if reduction == "sum":
        return 1.0
    _, heads, queries, keys = shape
    if mask is None:
        return 1.0 / (heads * queries * (keys if reduction == "mean" else 1))
    weight = mask.pair_weight  # [B, 1 | H, 1 | T, S]
    repeats = (heads // weight.shape[1]) * (queries // weight.shape[2])
    per_query = weight if reduction == "mean" else weight.amax(dim=-1)
    count = per_query.flatten(1).sum(dim=1) * repeats
    return count.clamp_min(1.0).to(dtype).reciprocal()
