"""The layout of an attention map: which entries are valid, and which are normalised together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import ClassVar

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from probattn.distributions import Gamma, LogNormal, Weibull
from probattn.sites.bayesian import KLReduction

Tile = tuple[slice, slice, slice]  # rows of the batch, heads and queries


class Layout:
    """Pairs of queries and keys, ``[B, H, T, S]``, all valid, each query's weights normalised over its keys."""

    keys_last: ClassVar[bool] = True
    """True if the entries that are normalised together are the last dimension."""

    @property
    def rows_alike(self) -> bool:
        """True if every query sees the same keys."""
        return True

    @property
    def pair_valid(self) -> Tensor | None:
        """Bool, True for the entries that take part in the KL; None for all."""
        return None

    @property
    def pair_weight(self) -> Tensor | None:
        """:attr:`pair_valid` as factors 0 and 1."""
        return None

    @property
    def query_weight(self) -> Tensor | None:
        """``[B, 1, T, 1]``, 0 for padded queries; None where all are real."""
        return None

    def first(self) -> tuple[slice | Tensor, Layout]:
        """Index and layout of the first datum with an entry in the KL, or of the first of all."""
        return slice(1), self

    def softmax(self, scores: Tensor) -> Tensor:
        """Weights from masked scores."""
        return torch.softmax(scores, dim=-1)

    def log_softmax(self, scores: Tensor) -> Tensor:
        """Logarithm of :meth:`softmax`."""
        return torch.log_softmax(scores, dim=-1)

    def weights(self, log_value: Tensor) -> Tensor:
        """Weights W from log S; values at forbidden entries are ignored, a query without any key gets zeros."""
        return self.softmax(log_value)

    def zero_empty(self, weights: Tensor) -> Tensor:
        """Weights with zeros for queries without any key."""
        return weights

    def zero_forbidden(self, values: Tensor) -> Tensor:
        """Values with zeros at forbidden entries."""
        return values

    def over_keys(self, values: Tensor, num_heads: int) -> Tensor:
        """Log-softmax over keys of one value a key, ``[B, G, S]`` with G dividing H, as ``[B, H, 1 | T, S]``."""
        return torch.log_softmax(by_head(values, num_heads), dim=-1)

    def event(self, distribution: Weibull | LogNormal | Gamma) -> TorchDistributionMixin:
        """A distribution of all entries as Pyro sees it: those without a part in the KL masked, batch ``[B]``."""
        masked = distribution if self.pair_valid is None else distribution.mask(self.pair_valid)
        return masked.to_event(3)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the entries that take part in the KL, ``[B]``."""
        if self.pair_valid is not None:
            values = torch.where(self.pair_valid, values, 0.0)
        return values.sum(dim=(1, 2, 3))

    def reduction_factor(
        self, reduction: KLReduction, shape: torch.Size, dtype: torch.dtype, observations: int = 1
    ) -> Tensor | float:
        """Factor from the KL summed over a call to its reduced form, a number or ``[B]``; times ``observations``."""
        if reduction == "sum":
            return 1.0
        count = self.count(reduction, shape)
        return observations / (count.to(dtype) if isinstance(count, Tensor) else count)

    def count(self, reduction: KLReduction, shape: torch.Size) -> Tensor | int:
        """Divisor of the KL, at least 1: entries ("mean"), or queries times heads ("keys")."""
        return max(1, shape[1:].numel() if reduction == "mean" else shape[1:3].numel())


PAIRS = Layout()  # all pairs valid


def by_head(values: Tensor, num_heads: int) -> Tensor:
    """One value a key ``[B, G, S]`` as a row of a map, ``[B, H, 1, S]``."""
    repeats = num_heads // values.shape[1]
    return (values if repeats == 1 else values.repeat_interleave(repeats, dim=1)).unsqueeze(2)


def cut(shape: Sequence[int], rows: int) -> Iterator[Tile]:
    """Tiles of a map ``[B, H, T, S]`` in the order of its rows: several data, several heads of one, or of one head."""
    batch, heads, queries = shape[:3]
    data = max(1, rows // max(1, heads * queries))
    some, few = max(1, rows // max(1, queries)), max(1, min(rows, queries))
    starts = product(range(0, batch, data), range(0, heads, some), range(0, queries, few))
    for corner in starts:
        sizes = zip(corner, (data, some, few), (batch, heads, queries), strict=True)
        first, second, third = (slice(start, min(start + step, end)) for start, step, end in sizes)
        yield first, second, third


def tile_of(tensor: Tensor, tile: Tile) -> Tensor:
    """The part of a tensor ``[B | 1, H | 1, T | 1, S]`` that a tile of a map meets."""
    sizes = zip(tile, tensor.shape[:3], strict=True)
    return tensor[tuple(rows if size > 1 else slice(None) for rows, size in sizes)]
