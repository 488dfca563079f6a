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
    """Tokens given the units ``[..., B, T, H]`` of an output network, for every place of an enumeration or those drawn.

    ``logits`` maps H to V, only for the pairs that ``counts`` (bool) marks, few in a padded batch; the log density of
    the others is 0. ``smoothing`` as of :class:`probattn.distributions.SmoothedCategorical`.
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
        """The smoothed log density of observed tokens, of the batch shape; 0 where nothing counts."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        counts = self.counts.expand(shape)
        units, tokens = self.units.expand(*shape, -1)[counts], value.expand(shape)[counts]
        rows = max(1, BLOCK // self.logits.out_features if units.device.type == "cpu" else len(units))
        blocks = zip(units.split(rows), tokens.split(rows), strict=True)
        log_density = torch.cat([self._tokens(block).log_prob(observed) for block, observed in blocks])
        return log_density.new_zeros(shape).masked_scatter(counts, log_density)

    def _tokens(self, units: Tensor) -> SmoothedCategorical:
        logits = self.logits(units)
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return SmoothedCategorical(precise, self.smoothing, validate_args=False)
