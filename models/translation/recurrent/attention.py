"""Dot attention of several heads over states that they share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probattn.models.dot_product import attention_function, eager_attention_forward
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig
from probattn.sites.masks import MASKED_SCORE

__all__ = ["DotAttention", "eager_attention_forward", "masked_log_softmax"]


class DotAttention(nn.Module):
    r"""Luong's "general" attention, heads summed (Luong et al. 2015; Snell et al. 2021, Eq. 20, 21).

    .. math:: a_{t,l}^k = s_t^\top W^k h_l, \qquad c_t = \sum_k \sum_l \mathrm{softmax}_l(a_t^k)_l\, h_l

    Head k's query is :math:`W^{k\top} s_t`; keys and values are the encoder's states, the same for all heads; the
    scores are not scaled.

    Args:
        config: sizes.

    Attributes:
        query: all W, its weight ``[K * D, E]``: rows kD .. (k + 1)D - 1 are the transpose of :math:`W^k`.
        is_decoder: True, so that conversion knows that the queries are those of a decoder.

    Example:
        >>> config = RecurrentTranslationConfig(hidden_size=4, decoder_hidden_size=6, num_attention_heads=3)
        >>> attention = DotAttention(config)
        >>> context, _ = attention(torch.randn(2, 5, 6), torch.randn(2, 7, 8))
        >>> context.shape, attention.head_weights().shape
        (torch.Size([2, 5, 8]), torch.Size([3, 6, 8]))
    """

    is_decoder = True

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(config.decoder_state_size, self.num_heads * config.state_size, bias=False)

    def head_weights(self) -> Tensor:
        """A view ``[K, E, D]`` of all W: writing into row k without gradients sets the weights of head k."""
        return self.query.weight.unflatten(0, (self.num_heads, -1)).transpose(1, 2)

    def forward(
        self,
        states: Tensor,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            states: s, ``[B, T, E]``.
            hidden: h, ``[B, S, D]``.
            attention_mask: of the keys, as the attention implementation wants it; None where all are real.
            query_mask: bool ``[B, T]``, True for real queries; None where all are. Attention is the same: it is for
                methods that sum over queries.

        Returns:
            c ``[B, T, D]`` and the weights ``[B, K, T, S]``, None where the implementation gives none.
        """
        queries = self._queries(states)
        shared = hidden[:, None]  # [B, 1, S, D]
        output, weights = attention_function(self.config)(
            self, queries, shared, shared, attention_mask, scaling=1.0, dropout=0.0, query_mask=query_mask
        )
        return output.sum(dim=2), weights

    def log_weights(self, states: Tensor, hidden: Tensor, key_mask: Tensor | None) -> Tensor:
        """Logarithms of the weights ``[B, K, T, S]``, for any attention implementation.

        Arguments as of :meth:`forward`, with ``key_mask`` ``[B, S]``, 0 at padding, where the logarithm is
        :data:`probattn.sites.masks.MASKED_SCORE`.
        """
        scores = torch.einsum("bktd,bsd->bkts", self._queries(states), hidden)
        return masked_log_softmax(scores, None if key_mask is None else key_mask[:, None, None])

    def _queries(self, states: Tensor) -> Tensor:
        queries = self.query(states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, K, T, D]
        return torch.zeros_like(queries) if self.config.uniform_attention else queries


def masked_log_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The logarithm of a softmax over the last dimension, finite everywhere, in float32 or better.

    Args:
        scores: ``[..., S]``.
        mask: broadcastable to ``scores``, 0 or False at padding; None where there is none.

    Returns:
        ``[..., S]``, :data:`probattn.sites.masks.MASKED_SCORE` at padding: the exponential of that is 0.

    Example:
        >>> masked_log_softmax(torch.zeros(3), torch.tensor([1, 1, 0])).exp()
        tensor([0.5000, 0.5000, 0.0000])
    """
    # Half precision has no room for the score of padding, and half as many digits as a divergence needs.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.log_softmax(dim=-1)
    padding = ~mask.bool()
    return scores.masked_fill(padding, MASKED_SCORE).log_softmax(dim=-1).masked_fill(padding, MASKED_SCORE)
