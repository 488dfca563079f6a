r"""Attention with noise before the softmax, without a map: blocks of rows, computed again in the backward pass.

Where the posterior's spread is a constant, a draw of the weights is

.. math:: W = \mathrm{softmax}(\Phi + g), \qquad g = \log(-\log u) / k \text{ or } s \epsilon

(Weibull or log-normal), since what else stands in log S is a number per query. Noise that can be made again row by row
leaves nothing of a map to keep: a step holds O(T) numbers, as flash attention does. A tile has whole rows, so that its
softmax is that of the map, and few enough of them to stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from probattn.first_order import edges_to, first_order
from probattn.sites.layout import Layout, Places, cut, part_of
from probattn.sites.masks import AttentionMask
from probattn.sites.noise import Rows

ADVICE = (
    "attention in tiles has none; output_attentions=True of a network, or need_weights=True of "
    "probattn.MultiheadAttention, computes the map, whose gradient can be differentiated again"
)
TILE = 2**17
"""Scores of a tile; a handful of float32 buffers of this size fit a core's second-level cache."""


class KLOfTiles(Protocol):
    """KL of a tile: of raw scores ``[b, h, t, S]``, the prior's logits ``[b, h, S]`` or None, and a layout."""

    def sums(self, scores: Tensor, logits: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """The KL ``[b]``, and its gradient by the logits, of their shape."""

    def by_scores(self, scores: Tensor, logits: Tensor | None, layout: Layout, share: Tensor) -> Tensor:
        """Gradient by the scores of a sum of the KLs, each ``share`` ``[b]`` times."""


class Tiled(NamedTuple):
    """Output ``[B, H, T, E]``, the log-sum-exp of each query's scores ``[B, H, T]``, and the KL of all tiles ``[B]``.

    The latter two are zeros where they are not asked for.
    """

    output: Tensor
    log_sum: Tensor
    kl: Tensor


@dataclass(frozen=True, eq=False)
class TiledCall:
    """What a tiled call needs besides tensors with a gradient.

    Args:
        layout: the mask, or all pairs.
        scale: factor of the scores.
        softcap: soft limit of the scores, or None.
        rows: the noise, by row of the map.
        perturb: turns the noise into what is added to the scores, in place.
        log_sums: whether the log-sum-exp of the scores is needed.
        kl: KL of a tile, or None where it does not need the tiles.
        entries: scores of a tile; a row has them all.
    """

    layout: Layout
    scale: float
    softcap: float | None
    rows: Rows
    perturb: Callable[[Tensor], Tensor]
    log_sums: bool
    kl: KLOfTiles | None = None
    entries: int = field(default_factory=lambda: TILE)

    def layout_of(self, places: Places) -> Layout:
        """The layout of a tile."""
        if not isinstance(self.layout, AttentionMask):
            return self.layout
        real, (batch, _, queries) = self.layout.query_valid, places
        return AttentionMask(
            part_of(self.layout.valid, places), None if real is None else real[batch, queries]
        )


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, logits: Tensor | None, call: TiledCall
) -> Tiled:
    """Attends with noise, differentiable once in the tensors; the derivative of a gradient raises ``RuntimeError``.

    Args:
        query: ``[B, H, T, D]``, float32 or float64 as all others.
        key: ``[B, H, S, D]``.
        value: ``[B, H, S, E]``.
        bias: additive scores, broadcastable to ``[B, H, T, S]``; None for none.
        logits: ``[B, H, S]``, handed to the tiles' KL.
        call: the rest.

    Example:
        >>> q = torch.zeros(1, 1, 2, 4)
        >>> call = TiledCall(Layout(), 1.0, None, lambda first, noise: None, torch.zero_, True)
        >>> tiled_attention(q, q, torch.ones(1, 1, 2, 3), None, None, call).log_sum
        tensor([[[0.6931, 0.6931]]])
    """
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
        for places in sweep.places():
            scores, _ = sweep.scores(places)
            if call.log_sums:
                # The largest score, less the logarithm of its share.
                share = torch.softmax(scores, dim=-1).amax(dim=-1).log_()
                log_sum[places] = scores.amax(dim=-1).sub_(share)
            if call.kl is not None:
                part, by_logits = call.kl.sums(scores, _heads(logits, places), call.layout_of(places))
                kl[places[0]] += part
                if slope is not None and by_logits is not None:
                    slope[places[:2]] += by_logits
            output[places] = sweep.weights(places, scores) @ sweep.value[places[:2]]
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
        for places in sweep.places():
            heads = places[:2]
            scores, inner = sweep.scores(places)
            to_scores = torch.zeros_like(scores)
            if grad_log_sum is not None and call.log_sums:
                share = torch.softmax(scores, dim=-1)
                torch.mul(share, grad_log_sum[places].unsqueeze(-1), out=to_scores)
            if grad_kl is not None and call.kl is not None:
                layout, share = call.layout_of(places), grad_kl[places[0]]
                to_scores += call.kl.by_scores(scores, _heads(logits, places), layout, share)
            if pulled is not None:
                weights, pull = sweep.weights(places, scores), pulled[places]
                to_value[heads] += weights.transpose(-1, -2) @ pull
                by_weights = pull @ sweep.value[heads].transpose(-1, -2)
                by_weights.sub_((pull * output[places]).sum(dim=-1, keepdim=True))
                to_scores.addcmul_(by_weights, weights)
            if to_bias is not None:
                part = part_of(to_bias, places)
                part += to_scores.sum_to_size(part.shape)
            if inner is not None and call.softcap is not None:
                to_scores.mul_(1 - (inner / call.softcap).square_())
            to_query[places] = (to_scores @ sweep.key[heads]).mul_(call.scale)
            to_key[heads] += to_scores.transpose(-1, -2) @ sweep.query[places]
        return to_query, to_key, to_value, to_bias, to_logits, None


class _Sweep:
    """The tiles of one pass, forward or backward, and what a tile is computed from."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, call: TiledCall
    ) -> None:
        self.query, self.key, self.value = (
            (query * call.scale).contiguous(),
            key.contiguous(),
            value.contiguous(),
        )
        self.bias, self.call = bias, call
        self._shape = (*query.shape[:3], key.shape[2])

    def places(self) -> Iterator[Places]:
        """The tiles in the order of their rows: of several data, of several heads of one, or of one head."""
        return cut(self._shape, max(1, self.call.entries // max(self._shape[3], 1)))

    def scores(self, places: Places) -> tuple[Tensor, Tensor | None]:
        """Masked scores of a tile ``[b, h, t, S]``, and those between cap and bias where there is a cap."""
        scores = self.query[places] @ self.key[places[:2]].transpose(-1, -2)
        inner: Tensor | None = None
        if self.call.softcap is not None:
            inner = scores.div_(self.call.softcap).tanh_().mul_(self.call.softcap)
            scores = inner.clone()
        if self.bias is not None:
            scores += part_of(self.bias, places)
        if isinstance(self.call.layout, AttentionMask):
            scores += part_of(self.call.layout.additive, places)
        return scores, inner

    def weights(self, places: Places, scores: Tensor) -> Tensor:
        """The weights of a draw, which may overwrite the scores."""
        _, heads, queries, keys = self._shape
        noise = torch.empty_like(scores)
        first = (places[0].start * heads + places[1].start) * queries + places[2].start
        self.call.rows(first, noise.view(-1, keys))
        weights = torch.softmax(self.call.perturb(noise).add_(scores), dim=-1)
        mask = self.call.layout
        if isinstance(mask, AttentionMask) and mask.has_empty_rows:
            weights.mul_(part_of(mask.row_weight, places))
        return weights


def _heads(tensor: Tensor | None, places: Places) -> Tensor | None:
    return None if tensor is None else tensor[places[:2]]
