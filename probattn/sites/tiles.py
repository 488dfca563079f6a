r"""Attention with noise before the softmax, without a map: blocks of rows, computed again in the backward pass.

Where the posterior's spread is a constant, a draw of the weights is

.. math:: W = \mathrm{softmax}(\Phi + g), \qquad g = \log(-\log u) / k \text{ or } s \epsilon

(Weibull or log-normal), since what else stands in log S is a number per query. Noise that can be made again row by row
leaves nothing of a map to keep: a step holds O(T) numbers, as flash attention does. A tile has whole rows, so that its
softmax is that of the map, and few enough of them to stay in a core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probattn.distributions.log_normal import log_normal_kl, log_normal_loc
from probattn.first_order import edges_to, first_order
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.layout import Layout, Tile, cut, tile_of
from probattn.sites.masks import AttentionMask
from probattn.sites.noise import Rows
from probattn.sites.weibull import constant_slope, constant_terms


@dataclass(frozen=True)
class TileKL:
    """KL of q(S) from the prior over the pairs of a tile that take part in it."""

    # A tile is its raw scores ``[b, h, t, S]``, the logits ``[b, h, S]`` of the prior's concentration, None where that
    # is a constant, and its layout.

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
            k = float(method.concentration)
            terms, slope = constant_terms(self._log_mean(scores), log_alpha, k, method.prior_rate)
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


ADVICE = (
    "attention in tiles has none; output_attentions=True of a network, or need_weights=True of "
    "probattn.MultiheadAttention, computes the map, whose gradient can be differentiated again"
)
TILE = 2**17  # scores of a tile; a handful of float32 buffers of this size fit a core's second-level cache


class Tiled(NamedTuple):
    """Output ``[B, H, T, E]``; log-sum-exp of the scores ``[B, H, T]`` and KL ``[B]``, 0 where nobody needs them."""

    output: Tensor
    log_sum: Tensor
    kl: Tensor


class NoisyRows(NamedTuple):
    """The noise of a draw by row of the map, and what turns it into what is added to the scores, in place."""

    fill: Rows
    perturb: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TiledCall:
    """What a tiled call needs besides tensors with a gradient; without noise it attends at the scores themselves."""

    layout: Layout
    scale: float
    softcap: float | None
    noise: NoisyRows | None
    log_sums: bool  # whether the log-sum-exp of the scores is needed
    kl: TileKL | None = None
    """KL of a tile; None where it does not need the tiles."""
    entries: int = field(default_factory=lambda: TILE)

    def layout_of(self, tile: Tile) -> Layout:
        """The layout of a tile."""
        if not isinstance(self.layout, AttentionMask):
            return self.layout
        real, (batch, _, queries) = self.layout.query_valid, tile
        return AttentionMask(tile_of(self.layout.valid, tile), None if real is None else real[batch, queries])


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, logits: Tensor | None, call: TiledCall
) -> Tiled:
    """Attends with noise, differentiable once; ``bias`` joins the scores, ``logits`` ``[B, H, S]`` are for the KL."""
    return Tiled(*_TiledAttention.apply(query, key, value, bias, logits, call))


class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        logits: Tensor | None,
        call: TiledCall,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sweep = _Sweep(query, key, value, bias, call)
        output = value.new_empty(*query.shape[:3], value.shape[-1])
        log_sum, kl = query.new_zeros(query.shape[:3]), query.new_zeros(len(query))
        slope = None if logits is None else torch.zeros_like(logits)
        for tile in sweep.tiles():
            scores, _ = sweep.scores(tile)
            if call.log_sums:
                # The largest score, less the logarithm of its share.
                share = torch.softmax(scores, dim=-1).amax(dim=-1).log_()
                log_sum[tile] = scores.amax(dim=-1).sub_(share)
            if call.kl is not None:
                tile_kl, by_logits = call.kl.sums(scores, _heads(logits, tile), call.layout_of(tile))
                kl[tile[0]] += tile_kl
                if slope is not None and by_logits is not None:
                    slope[tile[:2]] += by_logits
            output[tile] = sweep.weights(tile, scores) @ sweep.value[tile[:2]]
        ctx.call, ctx.edges = call, edges_to(query, key, value, bias, logits)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, bias, logits, output, slope)
        return output, log_sum, kl

    @staticmethod
    @first_order(ADVICE)
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_log_sum: Tensor | None, grad_kl: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        query, key, value, bias, logits, output, slope = ctx.saved_tensors
        call: TiledCall = ctx.call
        sweep = _Sweep(query, key, value, bias, call)
        to_query = torch.empty_like(query)
        to_key, to_value = torch.zeros_like(key), torch.zeros_like(value)
        to_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        to_logits = None if slope is None or grad_kl is None else slope * grad_kl.view(-1, 1, 1)
        pulled = None if grad_output is None else grad_output.contiguous()
        for tile in sweep.tiles():
            heads = tile[:2]
            scores, inner = sweep.scores(tile)
            to_scores = torch.zeros_like(scores)
            if grad_log_sum is not None and call.log_sums:
                share = torch.softmax(scores, dim=-1)
                torch.mul(share, grad_log_sum[tile].unsqueeze(-1), out=to_scores)
            if grad_kl is not None and call.kl is not None:
                layout, share = call.layout_of(tile), grad_kl[tile[0]]
                to_scores += call.kl.by_scores(scores, _heads(logits, tile), layout, share)
            if pulled is not None:
                weights, pull = sweep.weights(tile, scores), pulled[tile]
                to_value[heads] += weights.transpose(-1, -2) @ pull
                by_weights = pull @ sweep.value[heads].transpose(-1, -2)
                by_weights.sub_((pull * output[tile]).sum(dim=-1, keepdim=True))
                to_scores.addcmul_(by_weights, weights)
            if to_bias is not None:
                bias_tile = tile_of(to_bias, tile)
                bias_tile += to_scores.sum_to_size(bias_tile.shape)
            if inner is not None and call.softcap is not None:
                to_scores.mul_(1 - (inner / call.softcap).square_())
            to_query[tile] = (to_scores @ sweep.key[heads]).mul_(call.scale)
            to_key[heads] += to_scores.transpose(-1, -2) @ sweep.query[tile]
        return to_query, to_key, to_value, to_bias, to_logits, None


class _Sweep:
    """The tiles of one pass, forward or backward, and what a tile is computed from."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, call: TiledCall
    ) -> None:
        self.query = (query * call.scale).contiguous()
        self.key, self.value = key.contiguous(), value.contiguous()
        self.bias, self.call = bias, call
        self._shape = (*query.shape[:3], key.shape[2])

    def tiles(self) -> Iterator[Tile]:
        """The tiles in the order of their rows: of several data, of several heads of one, or of one head."""
        return cut(self._shape, max(1, self.call.entries // max(self._shape[3], 1)))

    def scores(self, tile: Tile) -> tuple[Tensor, Tensor | None]:
        """Masked scores of a tile ``[b, h, t, S]``, and those between cap and bias where there is a cap."""
        scores = self.query[tile] @ self.key[tile[:2]].transpose(-1, -2)
        inner: Tensor | None = None
        if self.call.softcap is not None:
            inner = scores.div_(self.call.softcap).tanh_().mul_(self.call.softcap)
            scores = inner.clone()
        if self.bias is not None:
            scores += tile_of(self.bias, tile)
        if isinstance(self.call.layout, AttentionMask):
            scores += tile_of(self.call.layout.additive, tile)
        return scores, inner

    def weights(self, tile: Tile, scores: Tensor) -> Tensor:
        """The weights of a draw, which may overwrite the scores."""
        if self.call.noise is not None:
            _, heads, queries, keys = self._shape
            noise = torch.empty_like(scores)
            first = (tile[0].start * heads + tile[1].start) * queries + tile[2].start
            self.call.noise.fill(first, noise.view(-1, keys))
            scores = self.call.noise.perturb(noise).add_(scores)
        weights = torch.softmax(scores, dim=-1)
        mask = self.call.layout
        if isinstance(mask, AttentionMask) and mask.has_empty_rows:
            weights.mul_(tile_of(mask.row_weight, tile))
        return weights


def _heads(tensor: Tensor | None, tile: Tile) -> Tensor | None:
    return None if tensor is None else tensor[tile[:2]]
