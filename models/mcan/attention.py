"""Attention of MCAN: between words and regions, and the reduction of either to one vector."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.models.dot_product import (
    ProjectedAttention,
    additive_mask,
    attention_function,
    eager_attention_forward,
)
from probattn.models.mcan.configuration import McanConfig


class PaddingMask(NamedTuple):
    """Which words, or regions, are valid: bool ``[B, S]``, and the same as an additive key mask ``[B, 1, 1, S]``."""

    valid: Tensor
    additive: Tensor

    @classmethod
    def of(cls, valid: Tensor, dtype: torch.dtype) -> PaddingMask:
        """The mask of ``valid``, bool ``[B, S]``."""
        return cls(valid, additive_mask(valid, dtype)[:, None, None])


class MultiHeadAttention(ProjectedAttention):
    """Scaled dot-product attention of several heads with an output projection (Vaswani et al. 2017).

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__(config, config.dropout)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, states: Tensor, others: Tensor, mask: PaddingMask, key_mask: PaddingMask, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            states: ``[B, T, d]``.
            others: ``[B, S, d]``, which ``states`` attend to.
            mask: of ``states``.
            key_mask: of ``others``.
            maps: whether the attention maps are wanted.

        Returns:
            ``[B, T, d]``, and the map ``[B, H, T, S]``, None where the attention implementation gives none.
        """
        output, weights = self.attend(states, others, key_mask.additive, mask.valid, output_attentions=maps)
        return self.output(output), weights


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
        self.output = nn.Linear(config.glimpses * size, config.fused_size)

    def forward(
        self, states: Tensor, mask: PaddingMask, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Reduces.

        Args:
            states: ``[B, S, d]``.
            mask: of them.
            maps: whether the attention maps are wanted.

        Returns:
            ``[B, fused]``, and the map ``[B, g, 1, S]``, None where the attention implementation gives none.
        """
        # A copy: code that keeps the arguments of attention must not hold the parameter itself.
        queries = self.query.weight.to(states.dtype)[None, :, None].repeat(len(states), 1, 1, 1)
        attend = attention_function(self.config) if self.config.latent_reduction else eager_attention_forward
        output, weights = attend(
            self,
            queries,  # [B, g, 1, d]
            self.dropout(torch.relu(self.key(states)))[:, None],  # [B, 1, S, d]
            states[:, None],
            mask.additive,
            scaling=1.0,
            dropout=0.0,
            output_attentions=maps,
        )
        return self.output(output.flatten(1)), weights
