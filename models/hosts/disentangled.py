"""Bridges of DeBERTa: disentangled scores are those of the contents with a bias of contents against positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deberta import modeling_deberta
from transformers.models.deberta_v2 import modeling_deberta_v2

from probattn.models.hosts.adapter import ATTRIBUTE, host_attention
from probattn.models.hosts.eager import Attended, UnreadableError


def eager_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _: Tensor,
    *,
    own_mask: Tensor,
    root: float,
    dropout: float,
    position_bias: Tensor | None,
    **__: object,
) -> Attended:
    """DeBERTa's attention, bit for bit, with the signature of the families' eager functions."""
    scores: Tensor = module.content_scores(query, key, root)
    if position_bias is not None:
        scores = scores + position_bias
    scores = scores.masked_fill(~own_mask, torch.finfo(scores.dtype).min)
    weights = nn.functional.dropout(scores.softmax(dim=-1), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


Maybe = Tensor | None
Projected = tuple[Tensor, Tensor, Tensor, int, Tensor | int | None]
"""Queries, keys and values ``[B, H, T, D]``, the number of terms of their scores, and a bias, if it is a tensor."""


class _Bridged(nn.Module):
    """Both families' attention, which runs as the family's own where nothing is attached to the module."""

    projected: Callable[[Tensor, Maybe, Maybe, Maybe], Projected]
    """Of hidden states, query states, relative positions and their embeddings."""

    def forward(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Attends through a site, or as the family does."""
        family: Any = super()
        attend = family.forward if getattr(self, ATTRIBUTE, None) is None else self._bridged
        return attend(*args, **options)

    def _bridged(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The family's ``forward`` through a site: output ``[B, T, H * D]`` and weights."""
        module: Any = self
        query, key, value, terms, bias = self.projected(
            hidden_states, query_states, relative_pos, rel_embeddings
        )
        root, own_mask = _root(self, terms), attention_mask.bool()
        # Padded queries, which the family lets see no key, see those of their datum at the site: rows are alike.
        blind = ~own_mask.any(dim=-1, keepdim=True)  # [B, 1, T, 1]
        seen = own_mask | (own_mask.any(dim=-2, keepdim=True) & blind)
        shape = (*query.shape[:2], *bias.shape[-2:]) if isinstance(bias, Tensor) else ()
        options: dict[str, Any] = {"own_mask": own_mask, "root": root, "dropout": module.dropout.p}
        options["position_bias"] = bias.view(shape) if isinstance(bias, Tensor) else None
        output, weights = host_attention(self, query, key, value, seen, scaling=1 / root, **options)
        if bool(blind.any()):
            uniform = value.new_full((1, 1, *own_mask.shape[-2:]), 1 / own_mask.shape[-1])
            mean = (uniform.expand(*value.shape[:2], -1, -1) @ value).transpose(1, 2).to(output.dtype)
            output = torch.where(blind.transpose(1, 2), mean, output)
            weights = None if weights is None else torch.where(blind, uniform.to(weights.dtype), weights)
        return output.flatten(2), weights if output_attentions else None


class BridgedDebertaV2(_Bridged, modeling_deberta_v2.DisentangledSelfAttention):
    """Attention of DeBERTa-v2 and DeBERTa-v3 (He et al. 2021, Eq. 4)."""

    def projected(self, hidden: Tensor, queried: Maybe, positions: Maybe, embeddings: Maybe) -> Projected:
        """As the family makes them."""
        heads = self.num_attention_heads
        query = self.transpose_for_scores(self.query_proj(hidden if queried is None else queried), heads)
        key = self.transpose_for_scores(self.key_proj(hidden), heads)  # [B * H, T, D]
        value = self.transpose_for_scores(self.value_proj(hidden), heads)
        terms = 1 + sum(term in self.pos_att_type for term in ("c2p", "p2c"))
        bias = None
        if self.relative_attention:
            dropped = self.pos_dropout(embeddings)
            bias = self.disentangled_attention_bias(query, key, positions, dropped, terms)
        query, key, value = (item.unflatten(0, (-1, heads)) for item in (query, key, value))
        return query, key, value, terms, bias

    def content_scores(self, query: Tensor, key: Tensor, root: float) -> Tensor:
        """Scores of the contents, divided as the family does it, so that no bit differs."""
        return query @ (key.transpose(-1, -2) / root)


class BridgedDeberta(_Bridged, modeling_deberta.DisentangledSelfAttention):
    """Attention of DeBERTa (He et al. 2021, Eq. 4) without talking heads, whose weights are no softmax."""

    def projected(self, hidden: Tensor, queried: Maybe, positions: Maybe, embeddings: Maybe) -> Projected:
        """As the family makes them."""
        if self.talking_head:
            raise UnreadableError(
                "DebertaModel: talking heads mix the weights of all heads, so the weights cannot be made latent; "
                "expected a configuration without talking_head"
            )
        if queried is not None:
            raise UnreadableError(
                "DebertaModel: expected queries of the hidden states themselves, got query_states"
            )
        fused = self.transpose_for_scores(self.in_proj(hidden))  # [B, H, T, 3 * D]
        query, key, value = fused.chunk(3, dim=-1)
        query = query + self.transpose_for_scores(self.q_bias[None, None])
        value = value + self.transpose_for_scores(self.v_bias[None, None])
        terms, bias = 1 + len(self.pos_att_type), None
        if self.relative_attention and embeddings is not None and positions is not None:
            divided, dropped = query / _root(self, terms), self.pos_dropout(embeddings)
            bias = self.disentangled_att_bias(divided, key, positions, dropped, terms)
        return query, key, value, terms, bias

    def content_scores(self, query: Tensor, key: Tensor, root: float) -> Tensor:
        """Scores of the contents, divided as the family does it, so that no bit differs."""
        return (query / root) @ key.transpose(-1, -2)


def _root(module: Any, terms: int) -> float:
    r""":math:`\sqrt{nD}` of n terms, in float32 for networks of any dtype, as the family has it."""
    size = module.attention_head_size * terms
    return torch.tensor(math.sqrt(size), dtype=torch.float32, device="cpu").item()
