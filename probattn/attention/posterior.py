"""The posterior of one attention call: its distribution, draws from it and its KL to the prior."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import kl_divergence

from probattn.attention.bayesian import BayesianAttention, KLReduction
from probattn.attention.masks import AttentionMask
from probattn.attention.noise import Noise
from probattn.distributions import Gamma, LogNormal, Weibull, log_weibull_sample
from probattn.distributions.carried_log import exp_carrying_log

TRUNCATION = (0.1, 0.9)
"""Range of the uniform noise in Zhang et al. 2021, section 3.3."""


class SitePosterior:
    """q(S) of one attention call, handed to the guide through the site's ``infer`` dictionary.

    The distribution is made on first use: a model traced without a guide never pays for it.

    Args:
        method: the options.
        make: computes the distribution, batch shape ``[B, H, T, S]``.
        prior: the prior, same batch shape.
        mask: validity of the pairs.
    """

    def __init__(
        self,
        method: BayesianAttention,
        make: Callable[[], Weibull | LogNormal],
        prior: Gamma | LogNormal,
        mask: AttentionMask | None,
    ) -> None:
        self.method = method
        self.prior = prior
        self.mask = mask
        self._make = make

    @cached_property
    def distribution(self) -> Weibull | LogNormal:
        """q(S) of every pair, unmasked."""
        return self._make()

    def event(self) -> TorchDistributionMixin:
        """q(S) as Pyro sees it: forbidden pairs and padded queries masked, batch shape ``[B]``."""
        return as_event(self.distribution, self.mask)

    def draw(self, noise: Noise) -> Tensor:
        """Draws S with its logarithm carried along.

        Args:
            noise: where the random numbers come from.

        Returns:
            S > 0, ``[B, H, T, S]``, differentiable in the posterior's parameters.
        """
        return exp_carrying_log(self.log_draw(noise))

    def log_draw(self, noise: Noise) -> Tensor:
        """Draws log S; "truncated" noise lives here, not in the distribution, whose ``rsample`` is exact."""
        posterior = self.distribution
        like = posterior.log_mean
        if isinstance(posterior, LogNormal):
            return posterior.loc + posterior.scale * noise.normal(like)
        uniform = noise.uniform(like)
        if self.method.noise == "truncated":
            low, high = TRUNCATION
            uniform.mul_(high - low).add_(low)
        log_exponential = uniform.clamp_(min=torch.finfo(uniform.dtype).eps).log_().neg_().log_()
        return log_weibull_sample(posterior.log_scale, posterior.unexpanded.concentration, log_exponential)

    def kl(self) -> Tensor:
        """KL(q || prior) in nats, summed over the valid pairs of real queries: ``[B]``."""
        elementwise = kl_divergence(self.distribution, self.prior)  # [B, H, T, S]
        if self.mask is not None:
            elementwise = elementwise * self.mask.pair_weight.to(elementwise.dtype)
        return elementwise.sum(dim=(1, 2, 3))

    def reduction_factor(self) -> Tensor | float:
        """What the summed KL is multiplied by: 1 for "sum", else one over the number of pairs or queries, ``[B]``."""
        batch, heads, queries, keys = self.prior.batch_shape
        return reduction_factor(self.method.kl_reduction, (batch, heads, queries, keys), self.mask)


def as_event(
    distribution: Weibull | LogNormal | Gamma, mask: AttentionMask | None
) -> TorchDistributionMixin:
    """Masks a distribution of batch shape ``[B, H, T, S]`` and makes ``[H, T, S]`` its event."""
    masked = distribution if mask is None else distribution.mask(mask.pair_valid)
    event: TorchDistributionMixin = masked.to_event(3)
    return event


def reduction_factor(
    reduction: KLReduction, shape: tuple[int, int, int, int], mask: AttentionMask | None
) -> Tensor | float:
    """Factor from the KL summed over a call to its reduced form, per datum.

    Args:
        reduction: "sum" gives 1; "keys" one over the number of real queries times heads; "mean" one over the number
            of valid pairs.
        shape: ``[B, H, T, S]`` of the call.
        mask: validity of the pairs.

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
    return count.clamp_min(1.0).reciprocal()
