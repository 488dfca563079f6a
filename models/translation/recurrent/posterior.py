"""The network that infers alignments from source and target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probattn.models.lstm import read_padded
from probattn.models.translation.recurrent.attention import masked_log_softmax
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig


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
