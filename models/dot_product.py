"""Dot-product attention of networks of this library: heads with keys of their own, or keys that all heads share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Output ``[B, T, H, E]`` and weights, with transformers' signature; heads may share keys ``[B, 1, S, D]``."""
    heads = query.shape[1:3]
    shared = key.shape[1] == 1
    if shared:  # heads one after the other are so many queries of the one key head
        query, key, value = query.flatten(1, 2), key[:, 0], value[:, 0]
    scores = query @ key.mT * scaling
    if shared:
        scores = scores.unflatten(1, heads)  # [B, H, T, S]
    if attention_mask is not None:
        scores = scores + attention_mask
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = F.softmax(scores, dim=-1, dtype=precise).to(query.dtype)
    weights = F.dropout(weights, dropout, training=module.training)
    output = (
        (weights.flatten(1, 2) @ value).unflatten(1, heads) if shared else weights @ value
    )  # [B, H, T, E]
    return output.transpose(1, 2).contiguous(), weights


def valid_positions(mask: Tensor | None, states: Tensor) -> Tensor:
    """bool ``[B, S]`` of a mask of states or tokens ``[B, S, ...]``, True everywhere without one."""
    return states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()


def additive_mask(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``valid`` (bool), the smallest number of the type elsewhere."""
    return torch.zeros(valid.shape, dtype=dtype, device=valid.device).masked_fill(
        ~valid, torch.finfo(dtype).min
    )


def all_maps(maps: Sequence[Tensor | None]) -> tuple[Tensor, ...] | None:
    """The attention maps of several calls; None where the attention implementation gives none."""
    present = [item for item in maps if item is not None]
    return tuple(present) if len(present) == len(maps) else None


class OwnAttention(nn.Module):
    """Base of attention modules of our own, whose family's eager attention function is that of this file."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config

    def dot_product(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Output ``[B, T, H, E]`` and weights of the function that the configuration names, unscaled by default."""
        defaults = {"scaling": 1.0, "dropout": 0.0}
        return attention_function(self.config)(self, query, key, value, mask, **defaults | options)


class ProjectedAttention(OwnAttention):
    """Scaled dot-product attention with projections of queries, keys and values (Vaswani et al. 2017)."""

    def __init__(self, config: PretrainedConfig, dropout: float = 0.0, *, bias: bool = True) -> None:
        super().__init__(config)
        self.dropout = dropout
        self.num_heads = config.num_attention_heads
        size = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(size, size, bias=bias) for _ in range(3))
        self.scaling = (size // self.num_heads) ** -0.5

    def attend(
        self, states: Tensor, others: Tensor, mask: Tensor, valid: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs ``[B, T, d]`` and weights of states ``[B, T, d]`` that attend to others; ``valid``: real states."""
        output, weights = self.dot_product(
            self.heads(self.query(states)),
            self.heads(self.key(others)),
            self.heads(self.value(others)),
            mask.expand(-1, -1, states.shape[1], -1),
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
            query_mask=valid,
            **options,
        )
        return output.flatten(2), weights

    def heads(self, values: Tensor) -> Tensor:
        """Projected values ``[B, T, d]`` by head, ``[B, H, T, D]``."""
        return values.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def attention_function(config: PretrainedConfig) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function that a configuration names; for "eager" or None the eager one above."""
    name = config._attn_implementation
    return eager_attention_forward if name in {None, "eager"} else ALL_ATTENTION_FUNCTIONS[name]
