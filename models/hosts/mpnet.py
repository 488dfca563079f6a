"""Bridge of MPNet, whose scores have a bias of relative positions that all layers share."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from transformers.models.mpnet import modeling_mpnet

from probattn.models.hosts.adapter import ATTRIBUTE, host_attention
from probattn.models.hosts.eager import Attended


def eager_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    position_bias: Tensor | None,
    **_: object,
) -> Attended:
    """MPNet's attention, bit for bit, with the signature of the families' eager functions."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(module.attention_head_size)
    for added in (position_bias, attention_mask):
        scores = scores if added is None else scores + added
    weights = module.dropout(nn.functional.softmax(scores, dim=-1))
    return (weights @ value).transpose(1, 2).contiguous(), weights


class BridgedMPNet(modeling_mpnet.MPNetSelfAttention):
    """Attention of MPNet (Song et al. 2020), which runs as the family's own where nothing is attached to the module."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """Attends through a site, or as the family does; output ``[B, T, H * D]`` and, if asked for, weights."""
        if getattr(self, ATTRIBUTE, None) is None:
            return super().forward(hidden_states, attention_mask, position_bias, output_attentions, **options)
        size = self.attention_head_size
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, size)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mask = None if attention_mask is None else attention_mask.expand(-1, -1, query.shape[2], -1)
        output, weights = host_attention(
            self, query, key, value, mask, scaling=1 / math.sqrt(size), position_bias=position_bias
        )
        projected = self.o(output.flatten(2))
        return (projected, weights) if output_attentions and weights is not None else (projected,)
