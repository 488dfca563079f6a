"""Attention of MCAN: between words and regions, and the reduction of either to one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probattn.models.dot_product import attention_function, eager_attention_forward
from probattn.models.mcan.configuration import McanConfig


def additive_mask(real: Tensor, dtype: torch.dtype) -> Tensor:
    """``[B, 1, 1, S]`` of ``real`` (bool ``[B, S]``): 0 there, the smallest number of the type elsewhere."""
    mask = torch.zeros(real.shape, dtype=dtype, device=real.device)
    return mask.masked_fill(~real, torch.finfo(dtype).min)[:, None, None]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention of several heads and a map after them (Vaswani et al. 2017).

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        size = config.hidden_size
        self.query, self.key, self.value, self.merge = (nn.Linear(size, size) for _ in range(4))
        self.scaling = (size // self.num_heads) ** -0.5

    def forward(
        self, states: Tensor, others: Tensor, real: Tensor, other_real: Tensor, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            states: ``[B, T, d]``.
            others: ``[B, S, d]``, which ``states`` attend to.
            real: bool ``[B, T]``, False at padding.
            other_real: bool ``[B, S]``, likewise.
            maps: whether the weights are wanted.

        Returns:
            ``[B, T, d]``, and the weights ``[B, H, T, S]``, None where the attention implementation gives none.
        """
        mask = additive_mask(other_real, states.dtype).expand(-1, -1, states.shape[1], -1)
        output, weights = attention_function(self.config)(
            self,
            self._heads(self.query(states)),
            self._heads(self.key(others)),
            self._heads(self.value(others)),
            mask,
            scaling=self.scaling,
            dropout=self.config.dropout if self.training else 0.0,
            query_mask=real,
            output_attentions=maps,
        )
        return self.merge(output.flatten(2)), weights

    def _heads(self, values: Tensor) -> Tensor:
        return values.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, T, D]


class AttentionalReduction(nn.Module):
    r"""A whole question, or a whole image, as one vector (Yu et al. 2019, Eq. 9).

    .. math:: \tilde x = W \sum_j \alpha_j x_j, \qquad
        \alpha = \mathrm{softmax}_j\bigl(v^\top \mathrm{ReLU}(U x_j)\bigr)

    With several glimpses each has a :math:`v` of its own and W joins their sums. As dot-product attention the query is
    v, a parameter, and the key :math:`\mathrm{ReLU}(U x_j)`, which all glimpses share.

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.key = nn.Linear(size, size)
        self.dropout = nn.Dropout(config.dropout)
        self.query = nn.Linear(size, config.glimpses, bias=False)
        self.merge = nn.Linear(config.glimpses * size, config.fused_size)

    def forward(self, states: Tensor, real: Tensor, *, maps: bool = False) -> tuple[Tensor, Tensor | None]:
        """Reduces.

        Args:
            states: ``[B, S, d]``.
            real: bool ``[B, S]``, False at padding.
            maps: whether the weights are wanted.

        Returns:
            ``[B, fused]``, and the weights ``[B, g, 1, S]``, None where the attention implementation gives none.
        """
        # A copy: code that keeps the arguments of attention must not hold the parameter itself.
        queries = self.query.weight.to(states.dtype)[None, :, None].repeat(len(states), 1, 1, 1)
        attend = attention_function(self.config) if self.config.latent_reduction else eager_attention_forward
        output, weights = attend(
            self,
            queries,  # [B, g, 1, d]
            self.dropout(torch.relu(self.key(states)))[:, None],  # [B, 1, S, d]
            states[:, None],
            additive_mask(real, states.dtype),
            scaling=1.0,
            dropout=0.0,
            output_attentions=maps,
        )
        return self.merge(output.flatten(1)), weights
