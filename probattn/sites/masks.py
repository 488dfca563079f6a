"""The validity of query-key pairs: keys that a query may attend to, queries that are real tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from probattn.host import on_cpu
from probattn.sites.bayesian import KLReduction
from probattn.sites.layout import Layout, by_head

MASKED_SCORE = -1e30
"""Score of a forbidden pair: exp() of it is exactly 0, and it stays finite under sums and small products in float32."""


@dataclass(frozen=True, eq=False)
class AttentionMask(Layout):
    """The query-key pairs that an attention call allows.

    Tensors derived from the mask are computed once, on first use; use one mask object for all layers of a forward pass.

    Args:
        valid: bool ``[B, 1 | H, 1 | T, S]``, True where the query may attend to the key.
        query_valid: bool ``[B, T]``, True for real queries; padded queries do not contribute to the KL. None if all
            queries are real.

    Raises:
        TypeError: a tensor is not bool.
        ValueError: a tensor has the wrong number of dimensions or the batch sizes differ.

    Example:
        >>> padding = torch.tensor([[True, True, False]])
        >>> mask = AttentionMask(padding[:, None, None, :], query_valid=padding)
        >>> mask.rows_alike, mask.has_empty_rows
        (True, False)
    """

    valid: Tensor
    query_valid: Tensor | None = None

    def __post_init__(self) -> None:
        if self.valid.dtype != torch.bool:
            raise TypeError(f"AttentionMask.valid: expected bool (True = attend), got {self.valid.dtype}")
        if self.valid.dim() != 4:
            raise ValueError(
                f"AttentionMask.valid: expected [B, 1 or H, 1 or T, S], got shape {list(self.valid.shape)}"
            )
        if self.query_valid is None:
            return
        if self.query_valid.dtype != torch.bool:
            raise TypeError(f"AttentionMask.query_valid: expected bool, got {self.query_valid.dtype}")
        if self.query_valid.dim() != 2:
            raise ValueError(
                f"AttentionMask.query_valid: expected [B, T], got shape {list(self.query_valid.shape)}"
            )
        if len(self.query_valid) != len(self.valid):
            raise ValueError(
                f"AttentionMask.query_valid: expected {len(self.valid)} rows as in valid, got {len(self.query_valid)}"
            )

    @cached_property
    def additive(self) -> Tensor:
        """Float32 of the shape of ``valid``: 0 at allowed pairs, -1e30 at forbidden ones."""
        return (~self._distinct).float().mul_(MASKED_SCORE).expand(self.valid.shape)

    @cached_property
    def rows_alike(self) -> bool:
        """True if all queries may attend to the same keys (padding only; neither causal nor windowed)."""
        if self.valid.shape[2] == 1 or self.valid.stride(2) == 0:
            return True
        return bool((self.valid == self.valid[:, :, :1]).all())

    @cached_property
    def valid_weight(self) -> Tensor:
        """``valid`` as float32: 1 at allowed pairs, 0 at forbidden ones."""
        return self._distinct.float().expand(self.valid.shape)

    @cached_property
    def row_weight(self) -> Tensor:
        """Float32 ``[B, 1 | H, 1 | T, 1]``: 0 for a query that may attend to no key, else 1."""
        return self._distinct.any(dim=-1, keepdim=True).float().expand(*self.valid.shape[:3], 1)

    @cached_property
    def has_empty_rows(self) -> bool:
        """True if some query may attend to no key; the output of such a query is 0."""
        return not bool(self._distinct.any(dim=-1).all())

    @property
    def _distinct(self) -> Tensor:
        """``valid``, one row of it where the others are the same memory."""
        return self.valid[:, :, :1] if self.valid.stride(2) == 0 else self.valid

    @cached_property
    def query_weight(self) -> Tensor | None:
        """Float32 ``[B, 1, T, 1]``: 0 for padded queries, else 1; None if ``query_valid`` is None."""
        return None if self.query_valid is None else self.query_valid[:, None, :, None].float()

    @cached_property
    def pair_weight(self) -> Tensor:
        """Float32 ``[B, 1 | H, 1 | T, S]``: 1 at allowed pairs of real queries, which contribute to the KL, else 0."""
        return self.valid_weight if self.query_weight is None else self.valid_weight * self.query_weight

    @cached_property
    def pair_valid(self) -> Tensor:
        """:attr:`pair_weight` as bool."""
        return self.pair_weight.bool()

    @cached_property
    def key_valid(self) -> Tensor:
        """Bool ``[B, 1 | H, S]``: keys that some real query may attend to."""
        return self.pair_valid.any(dim=2)

    def first(self) -> tuple[Tensor, AttentionMask]:
        """Index ``[1]`` and mask of the first datum with a valid pair of a real query, or of the first of all."""
        row = self.pair_valid.flatten(1).any(dim=1).int().argmax(dim=0, keepdim=True)
        return row, AttentionMask(
            self.valid[row], None if self.query_valid is None else self.query_valid[row]
        )

    def weights(self, log_value: Tensor) -> Tensor:
        r"""Attention weights :math:`W = S / \sum_{keys} S` from log S, ``[B, H, T, S]``.

        Values at forbidden pairs are ignored; a query that may attend to no key gets zeros.
        """
        return self.zero_empty(torch.softmax(log_value + self.additive.to(log_value.dtype), dim=-1))

    def zero_empty(self, weights: Tensor) -> Tensor:
        """Weights ``[B, H, T, S]``, set to 0 for queries that may attend to no key."""
        some = not on_cpu(weights) or self.has_empty_rows  # a product costs less than to wait for the answer
        return weights * self.row_weight.to(weights.dtype) if some else weights

    def zero_forbidden(self, values: Tensor) -> Tensor:
        """Values ``[B, H, T, S]``, set to 0 at forbidden pairs."""
        return torch.where(self.valid, values, 0.0)

    def over_keys(self, values: Tensor, num_heads: int) -> Tensor:
        """Log-softmax of one number per key, ``[B, G, S]``, over each query's allowed keys: ``[B, H, 1 | T, S]``."""
        shared = self._distinct.shape[2] == 1 or (on_cpu(values) and self.rows_alike)
        rows = slice(0, 1) if shared else slice(None)
        additive, valid = (item[:, :, rows].to(values.dtype) for item in (self.additive, self.valid_weight))
        return torch.log_softmax(by_head(values, num_heads) + additive, dim=-1) * valid

    @cached_property
    def _factors(self) -> dict[Any, Tensor | float]:
        return {}

    def reduction_factor(
        self, reduction: KLReduction, shape: torch.Size, dtype: torch.dtype, observations: int = 1
    ) -> Tensor | float:
        """Factor from the KL summed over a call to its reduced form: ``observations`` / count ``[B]``, 1 for "sum"."""
        key = (reduction, shape, dtype, observations)
        if key not in self._factors:
            self._factors[key] = super().reduction_factor(*key)
        return self._factors[key]

    def count(self, reduction: KLReduction, shape: torch.Size) -> Tensor:
        """Divisor of the KL, ``[B]``: heads times allowed pairs of real queries ("mean") or real queries with keys."""
        valid = self._distinct
        whole = reduction == "mean"
        per_query = (
            valid.sum(dim=-1, dtype=torch.float32) if whole else valid.any(dim=-1).float()
        )  # [B, 1 | H, 1 | T]
        per_query = per_query.sum(dim=1, keepdim=True) * (shape[1] // valid.shape[1])
        real = per_query.new_ones(1, 1, shape[2]) if self.query_valid is None else self.query_valid[:, None]
        return (per_query * real).sum(dim=(1, 2)).clamp_min(1.0)
