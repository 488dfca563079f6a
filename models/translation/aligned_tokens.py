"""The likelihood of target tokens, each from one place in the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import constraints

from probattn.distributions import SmoothedCategorical

BLOCK = 2**20
"""Logits that are made at once on a CPU, as many as its caches hold."""


class AlignedTokens(TorchDistribution):
    """Tokens given the units of an output network for every place of an enumeration, or for those drawn.

    Logits over the vocabulary are made for the pairs that count alone, which in a padded batch are a small part of all.

    Args:
        units: what the network's last map is given, ``[..., B, T, H]``.
        logits: the map, H to V.
        counts: bool, broadcastable to ``[..., B, T]``; elsewhere the log density is 0.
        smoothing: of :class:`probattn.distributions.SmoothedCategorical`.

    Example:
        >>> map = torch.nn.Linear(3, 7)
        >>> tokens = AlignedTokens(torch.randn(4, 2, 5, 3), map, torch.tensor([[True] * 5, [False] * 5]))
        >>> found = tokens.log_prob(torch.zeros(2, 5, dtype=torch.long))
        >>> found.shape, found[:, 1].abs().sum().item()
        (torch.Size([4, 2, 5]), 0.0)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, units: Tensor, logits: nn.Linear, counts: Tensor, smoothing: float = 0.0) -> None:
        self.units = units
        self.logits = logits
        self.counts = counts
        self.smoothing = smoothing
        super().__init__(units.shape[:-1], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Tokens are whole numbers from 0."""
        return constraints.nonnegative_integer

    def expand(self, batch_shape: Sequence[int], _instance: AlignedTokens | None = None) -> AlignedTokens:
        """The same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return AlignedTokens(self.units.expand(*shape, -1), self.logits, self.counts, self.smoothing)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws tokens, int64 ``sample_shape + batch_shape``."""
        return self._tokens(self.units).sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The smoothed log density of observed tokens.

        Args:
            value: int64, broadcastable with the batch shape.

        Returns:
            Of the batch shape; 0 where nothing counts.
        """
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        counts = self.counts.expand(shape)
        units, tokens = self.units.expand(*shape, -1)[counts], value.expand(shape)[counts]
        rows = max(1, BLOCK // self.logits.out_features if units.device.type == "cpu" else len(units))
        blocks = zip(units.split(rows), tokens.split(rows), strict=True)
        found = torch.cat([self._tokens(block).log_prob(own) for block, own in blocks])
        return found.new_zeros(shape).masked_scatter(counts, found)

    def _tokens(self, units: Tensor) -> SmoothedCategorical:
        logits = self.logits(units)
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return SmoothedCategorical(precise, self.smoothing, validate_args=False)
