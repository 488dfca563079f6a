"""Multi-head attention between vertices, and from a decoder to vertices or words."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from probattn.models.dot_product import ProjectedAttention, eager_attention_forward
from probattn.models.graphwriter.configuration import GraphWriterConfig


class Projected(NamedTuple):
    """Keys and values of all heads, ``[B, H, S, D]``, and their additive mask ``[B, 1, 1, S]``."""

    key: Tensor
    value: Tensor
    mask: Tensor


class VertexAttention(ProjectedAttention):
    r"""What a state takes from others, heads side by side, beside the state itself (Koncel-Kedziorski et al. 2019).

    .. math:: \hat v_i = v_i + \Big\Vert_n \sum_j \alpha^n_{ij} W_V^n k_j, \qquad
        \alpha^n_{ij} = \mathrm{softmax}_j\Bigl(\tfrac{(W_Q^n v_i)^\top W_K^n k_j}{\sqrt D}\Bigr)

    There is no map after the heads. The scores are scaled as in Vaswani et al. (2017).

    Args:
        config: sizes.
        dropout: of the weights.
    """

    def __init__(self, config: GraphWriterConfig, dropout: float = 0.0) -> None:
        super().__init__(config, dropout, bias=False)

    def forward(
        self, states: Tensor, others: Tensor, mask: Tensor, real: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Attends; see :meth:`attend`."""
        output, weights = self.attend(states, others, mask, real)
        return states + output, weights


class ContextAttention(VertexAttention):
    """The same from a decoder's states.

    Attributes:
        is_decoder: True, so that conversion knows that the queries are those of a decoder.
    """

    is_decoder: ClassVar[bool] = True

    def project(self, others: Tensor, mask: Tensor) -> Projected:
        """Keys and values of others ``[B, S, d]`` for :meth:`expected`; ``mask`` ``[B, 1, 1, S]``."""
        return Projected(self.heads(self.key(others)), self.heads(self.value(others)), mask)

    def expected(self, state: Tensor, others: Projected) -> Tensor:
        """The context ``[B, d]`` of one state ``[B, d]`` under the weights themselves, without any method."""
        query = self.heads(self.query(state[:, None]))
        output, _ = eager_attention_forward(self, query, *others, scaling=self.scaling)
        return state + output.flatten(1)
