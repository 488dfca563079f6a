"""Dot attention of several heads over states that they share, and the inference of alignments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probattn.models.dot_product import OwnAttention
from probattn.models.lstm import read_padded
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig
from probattn.sites.masks import MASKED_SCORE


class DotAttention(OwnAttention):
    r"""Luong's "general" attention, heads summed (Luong et al. 2015; Snell et al. 2021, Eq. 20, 21).

    .. math:: a_{t,l}^k = s_t^\top W^k h_l, \qquad c_t = \sum_k \sum_l \mathrm{softmax}_l(a_t^k)_l\, h_l

    Head k's query is :math:`W^{k\top} s_t`; keys and values are the encoder's states, the same for all heads; the
    scores are not scaled. Rows kD .. (k + 1)D - 1 of ``query.weight`` ``[K * D, E]`` are the transpose of :math:`W^k`.
    By ``is_decoder`` conversion knows that the queries are those of a decoder.
    """

    is_decoder = True

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__(config)
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
        """c ``[B, T, D]`` and the weights ``[B, K, T, S]``, None where the attention implementation gives none.

        Of s ``[B, T, E]`` and h ``[B, S, D]``; the mask is that of the keys in the form of the implementation, and
        ``query_mask``, bool ``[B, T]``, tells methods that sum over queries which of them are real.
        """
        shared = hidden[:, None]  # [B, 1, S, D]
        queries = self._queries(states)
        output, weights = self.dot_product(queries, shared, shared, attention_mask, query_mask=query_mask)
        return output.sum(dim=2), weights

    def log_weights(self, states: Tensor, hidden: Tensor, key_mask: Tensor | None) -> Tensor:
        """Logarithms of the weights ``[B, K, T, S]``, for any attention implementation; ``key_mask`` is ``[B, S]``."""
        scores = torch.einsum("bktd,bsd->bkts", self._queries(states), hidden)
        return masked_log_softmax(scores, None if key_mask is None else key_mask[:, None, None])

    def _queries(self, states: Tensor) -> Tensor:
        queries = self.query(states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, K, T, D]
        return torch.zeros_like(queries) if self.config.uniform_attention else queries


def masked_log_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The logarithm of a softmax of scores ``[..., S]``, finite everywhere, in float32 or better.

    Where the mask, broadcastable, is 0 or False it is :data:`probattn.sites.masks.MASKED_SCORE`, whose exponential is 0.
    """
    # Half precision has no room for the score of padding, and half as many digits as a divergence needs.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.log_softmax(dim=-1)
    padding = ~mask.bool()
    return scores.masked_fill(padding, MASKED_SCORE).log_softmax(dim=-1).masked_fill(padding, MASKED_SCORE)


class AlignmentInference(nn.Module):
    r"""Scores of a source token for each target token, from the whole source and the whole target.

    Two bidirectional LSTMs of one layer, one over the source and one over the target (not shifted), and a dot product
    between their states (Deng et al. 2018, section 4); no parameter is shared with the translation network:

    .. math:: q(z_t = l \mid x, y) = \mathrm{softmax}_l(g_t^\top U f_l)
    """

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        size, width = config.embedding_size, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, size, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.source = nn.LSTM(size, width, batch_first=True, bidirectional=True)
        self.target = nn.LSTM(size, width, batch_first=True, bidirectional=True)
        self.map = nn.Linear(2 * width, 2 * width, bias=False)

    def forward(
        self, source: Tensor, source_mask: Tensor | None, target: Tensor, target_mask: Tensor | None
    ) -> Tensor:
        """Log-probabilities of alignments ``[B, T, S]``; :data:`probattn.sites.masks.MASKED_SCORE` at padding."""
        source_states, _ = read_padded(self.source, self.dropout(self.embed_tokens(source)), source_mask)
        target_states, _ = read_padded(self.target, self.dropout(self.embed_tokens(target)), target_mask)
        scores = torch.einsum("btd,bsd->bts", self.map(target_states), source_states)
        return masked_log_softmax(scores, None if source_mask is None else source_mask[:, None])
