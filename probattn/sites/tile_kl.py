"""The KL of a tile of an attention map, with its gradients, where the posterior's spread is a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.distributions.log_normal import log_normal_kl, log_normal_loc
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.layout import Layout
from probattn.sites.masks import AttentionMask
from probattn.sites.weibull import constant_slope, constant_terms


@dataclass(frozen=True)
class TileKL:
    r"""KL of q(S) from the prior, over the pairs of a tile that take part in it.

    .. math::
        \text{Weibull:}\quad & \alpha (g / k - \log\lambda - \log\beta) + \log k + \beta e^{\mu}
            + \log\Gamma(\alpha) - g - 1 \\
        \text{log-normal:}\quad & \log (s_p / s) + [s^2 + (\mu - s^2 / 2 - \log\alpha)^2] / (2 s_p^2) - 1 / 2

    A tile is its raw scores ``[b, h, t, S]``, the logits ``[b, h, S]`` of the prior's concentration alpha, None where
    that is a constant, and its layout.
    """

    method: BayesianAttention

    def sums(self, scores: Tensor, logits: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """The KL ``[b]``, and its gradient by the logits, of their shape."""
        method, weight = self.method, layout.pair_weight
        log_alpha = self._log_alpha(scores, logits, layout)
        if method.posterior == "lognormal":
            distance = self._distance(scores, log_alpha, weight)
            terms = log_normal_kl(distance, method.scale, method.prior_scale)
            slope = distance.mul_(-1 / method.prior_scale**2)
        else:
            terms, slope = constant_terms(
                self._log_mean(scores), log_alpha, float(method.concentration), method.prior_rate
            )
        if weight is not None:
            terms, slope = terms.mul_(weight), slope.mul_(weight)
        kl = terms.sum(dim=(1, 2, 3))
        if logits is None:
            return kl, None
        if log_alpha.shape[2] == 1:
            slope = slope.sum(dim=2, keepdim=True)
        share = log_alpha.exp()
        if method.log_strength:
            share.div_(math.exp(method.log_strength))
        if isinstance(layout, AttentionMask):
            share = torch.where(layout.valid[:, :, : share.shape[2]], share, 0.0)
        return kl, (slope - share * slope.sum(dim=-1, keepdim=True)).sum(dim=2)

    def by_scores(self, scores: Tensor, logits: Tensor | None, layout: Layout, share: Tensor) -> Tensor:
        """Gradient by the scores of a sum of the KLs, each ``share`` ``[b]`` times."""
        method, weight = self.method, layout.pair_weight
        log_alpha = self._log_alpha(scores, logits, layout)
        if method.posterior == "lognormal":
            slope = self._distance(scores, log_alpha, weight).mul_(1 / method.prior_scale**2)
        elif method.scores == "raw":
            slope = constant_slope(scores, log_alpha.exp(), method.prior_rate)
        else:  # E[S] of a query sums to 1, whatever its scores
            slope = log_alpha.exp().neg_().expand_as(scores)
        slope = slope if weight is None else slope * weight
        slope = slope * share.view(-1, 1, 1, 1)
        if method.scores == "normalised":
            slope = slope.addcmul_(torch.softmax(scores, dim=-1), slope.sum(dim=-1, keepdim=True), value=-1)
        return slope

    def _log_alpha(self, scores: Tensor, logits: Tensor | None, layout: Layout) -> Tensor:
        log_strength = self.method.log_strength
        if logits is None:
            return scores.new_full((1, 1, 1, 1), math.log(self.method.prior_concentration) + log_strength)
        log_alpha = layout.over_keys(logits, scores.shape[1])
        return log_alpha + log_strength if log_strength else log_alpha

    def _log_mean(self, scores: Tensor) -> Tensor:
        return scores if self.method.scores == "raw" else torch.log_softmax(scores, dim=-1)

    def _distance(self, scores: Tensor, log_alpha: Tensor, weight: Tensor | None) -> Tensor:
        """E[log S] less that of the prior; 0 at pairs that take no part."""
        distance = log_normal_loc(self._log_mean(scores) - log_alpha, self.method.scale)
        return distance if weight is None else distance.mul_(weight)
