"""Multi-head attention between vertices, and from a decoder to vertices or words."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from probattn.models.dot_product import attention_function, eager_attention_forward
from probattn.models.graphwriter.configuration import GraphWriterConfig


def additive_mask(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``valid`` (bool), the smallest number of the type elsewhere."""
    return torch.zeros(valid.shape, dtype=dtype, device=valid.device).masked_fill(
        ~valid, torch.finfo(dtype).min
    )


class Projected(NamedTuple):
    """Keys and values of all heads, ``[B, H, S, D]``, and their additive mask ``[B, 1, 1, S]``."""

    key: Tensor
    value: Tensor
    mask: Tensor


class VertexAttention(nn.Module):
    r"""What a state takes from others, heads side by side, beside the state itself (Koncel-Kedziorski et al. 2019).

    .. math:: \hat v_i = v_i + \Big\Vert_n \sum_j \alpha^n_{ij} W_V^n k_j, \qquad
        \alpha^n_{ij} = \mathrm{softmax}_j\Bigl(\tfrac{(W_Q^n v_i)^\top W_K^n k_j}{\sqrt D}\Bigr)

    There is no map after the heads. The scores are scaled as in Vaswani et al. (2017).

    Args:
        config: sizes.
        dropout: of the weights.
    """

    def __init__(self, config: GraphWriterConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.num_heads = config.num_attention_heads
        size = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.scaling = (size // self.num_heads) ** -0.5

    def forward(
        self, states: Tensor, others: Tensor, mask: Tensor, real: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            states: ``[B, T, d]``.
            others: ``[B, S, d]``.
            mask: additive, ``[B, 1, T | 1, S]``.
            real: bool ``[B, T]``, True for real states; None where all are.

        Returns:
            ``[B, T, d]`` and the weights ``[B, H, T, S]``, None where the attention implementation gives none.
        """
        output, weights = attention_function(self.config)(
            self,
            self._heads(self.query(states)),
            self._heads(self.key(others)),
            self._heads(self.value(others)),
            mask.expand(-1, -1, states.shape[1], -1),
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
            query_mask=real,
        )
        return states + output.flatten(2), weights

    def _heads(self, values: Tensor) -> Tensor:
        return values.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, T, D]


class ContextAttention(VertexAttention):
    """The same from a decoder's states.

    Attributes:
        is_decoder: True, so that conversion knows that the queries are those of a decoder.
    """

    is_decoder: ClassVar[bool] = True

    def project(self, others: Tensor, mask: Tensor) -> Projected:
        """Keys and values of others ``[B, S, d]`` for :meth:`expected`; ``mask`` ``[B, 1, 1, S]``."""
        return Projected(self._heads(self.key(others)), self._heads(self.value(others)), mask)

    def expected(self, state: Tensor, others: Projected) -> Tensor:
        """The context ``[B, d]`` of one state ``[B, d]`` under the weights themselves, without any method."""
        query = self._heads(self.query(state[:, None]))
        output, _ = eager_attention_forward(self, query, *others, scaling=self.scaling)
        return state + output.flatten(1)
