"""The two token sets that a divergence compares: checked, masked and in full precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.host import at_least_float32


@dataclass(frozen=True, eq=False)
class TokenSets:
    """Queries and keys ``[B, H, T | S, D]``, at least float32, 0 where masked; masks ``[B, 1 | H, T | S]`` or None."""

    query: Tensor
    key: Tensor
    query_mask: Tensor | None
    key_mask: Tensor | None

    @property
    def query_weight(self) -> Tensor:
        """Probability of each query, ``[B | 1, 1 | H, T]``: one over their number, 0 where masked."""
        return _weight(self.query, self.query_mask)

    @property
    def key_weight(self) -> Tensor:
        """Probability of each key, ``[B | 1, 1 | H, S]``."""
        return _weight(self.key, self.key_mask)

    def both(self) -> Tensor:
        """Queries, then keys, ``[B, H, T + S, D]``, for networks that run over both."""
        return torch.cat([self.query, self.key], dim=2)

    def split(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Splits along dimension 2 what a network made of :meth:`both`."""
        query, key = both.split([self.query.shape[2], self.key.shape[2]], dim=2)
        return query, key


def compare(
    measure: Callable[[TokenSets], Tensor],
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
) -> Tensor:
    """The divergence [B, H] of two checked token sets by ``measure``, outside autocast; 0 where either is empty."""
    tokens = token_sets(query, key, mask, query_mask, key_mask)
    if not tokens.query.numel() or not tokens.key.numel():
        return 0 * (tokens.query.sum(dim=(2, 3)) + tokens.key.sum(dim=(2, 3)))  # with a gradient, of 0
    with torch.autocast(query.device.type, enabled=False):
        divergence = measure(tokens)
    for side in (tokens.query_mask, tokens.key_mask):
        divergence = divergence if side is None else divergence.masked_fill(~side.any(dim=-1), 0.0)
    return divergence


def token_sets(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> TokenSets:
    """Token sets of queries [B, H, T, D], keys [B, H, S, D] and bool masks [B, T | S] or [B, 1 | H, T | S], checked."""
    _check_tokens(query, key)
    if mask is not None:
        if query_mask is not None or key_mask is not None:
            raise ValueError(
                "mask: expected it alone (for queries and keys at once), got query_mask or key_mask too"
            )
        if query.shape[2] != key.shape[2]:
            raise ValueError(
                f"mask: serves queries and keys of one length, got {query.shape[2]} queries and {key.shape[2]} keys; "
                "use query_mask and key_mask"
            )
        query_mask = key_mask = _shaped_mask("mask", mask, query)
    else:
        query_mask = None if query_mask is None else _shaped_mask("query_mask", query_mask, query)
        key_mask = None if key_mask is None else _shaped_mask("key_mask", key_mask, key)
    dtype = torch.promote_types(query.dtype, key.dtype)
    query, key = query.to(dtype), key.to(dtype)
    return TokenSets(_zeroed(query, query_mask), _zeroed(key, key_mask), query_mask, key_mask)


def _check_tokens(query: Tensor, key: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 4:
            raise ValueError(f"{name}: expected [B, H, T or S, D], got shape {list(tensor.shape)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name}: expected floating-point numbers, got {tensor.dtype}")
    if query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"expected queries and keys alike in B, H and D, got {list(query.shape)} and {list(key.shape)}"
        )


def _shaped_mask(name: str, mask: Tensor, tokens: Tensor) -> Tensor:
    batch, heads, length, _ = tokens.shape
    if mask.dtype != torch.bool:
        raise TypeError(f"{name}: expected bool (True = a token that counts), got {mask.dtype}")
    shaped = mask[:, None] if mask.dim() == 2 else mask
    if shaped.shape not in ((batch, 1, length), (batch, heads, length)):
        raise ValueError(
            f"{name}: expected [{batch}, {length}] or [{batch}, 1 or {heads}, {length}], got {list(mask.shape)}"
        )
    return shaped


def _zeroed(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """At least float32; zeros where masked, so that no value there can reach a value or a gradient."""
    wide = at_least_float32(tokens)
    return wide if mask is None else wide.masked_fill(~mask.unsqueeze(-1), 0.0)


def _weight(tokens: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        length = tokens.shape[2]
        return tokens.new_full((1, 1, length), 1 / length)
    counts = mask.to(tokens.dtype)
    return counts / counts.sum(dim=-1, keepdim=True).clamp_min(1.0)
