"""Scores of their own for the concentration of a posterior."""

from __future__ import annotations

from torch import Tensor, nn

from probattn.sites.masks import AttentionMask
from probattn.sites.scores import attention_scores, repeat_heads


class SeparateScores(nn.Module):
    """Scores of linear maps of all heads' queries and keys, which learn with the posterior."""

    # The authors' code projects the hidden states a second time. Where the projections of the attention are square and
    # of full rank, a map of what they give is the same family.

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(num_heads * head_dim, num_heads * head_dim)
        self.key = nn.Linear(num_heads * head_dim, num_heads * head_dim)

    def forward(self, query: Tensor, key: Tensor, mask: AttentionMask | None) -> Tensor:
        """Masked scores ``[B, H, T, S]`` of queries ``[B, H, T, D]`` and keys ``[B, G, S, D]``."""
        key = repeat_heads(key, query.shape[1])
        return attention_scores(self._mapped(self.query, query), self._mapped(self.key, key), mask)

    def _mapped(self, linear: nn.Linear, tensor: Tensor) -> Tensor:
        """The map across heads; windows next to the heads are mapped one by one."""
        windows = tensor.to(linear.weight.dtype).unflatten(1, (-1, self.num_heads)).transpose(2, 3)
        mapped = linear(windows.flatten(-2)).unflatten(-1, windows.shape[-2:])
        return mapped.transpose(2, 3).flatten(1, 2)
