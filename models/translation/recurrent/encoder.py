"""The LSTM that reads the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from probattn.models.lstm import read_padded
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig


@dataclass
class RecurrentEncoderOutput(ModelOutput):
    """States h ``[B, S, D]``, 0 at padding, and the LSTM's last hidden and cell state of each layer ``[B, layers, D]``.

    The directions stand side by side in D. The batch comes first, as a beam search requires.
    """

    last_hidden_state: Tensor | None = None
    final_hidden: Tensor | None = None
    final_cell: Tensor | None = None


class RecurrentEncoder(nn.Module):
    """Embedding (``embed_tokens``, shared with the decoder) and LSTM over the source; padding takes no part."""

    main_input_name = "input_ids"

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.embedding_size,
            config.hidden_size,
            config.num_hidden_layers,
            batch_first=True,
            dropout=config.layer_dropout,
            bidirectional=config.bidirectional,
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> RecurrentEncoderOutput:
        """States of tokens ``[B, S]``, or of their vectors ``[B, S, E]``; the mask is 0 at padding, None without."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__}: expected input_ids or inputs_embeds, one of them")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        check_mask(type(self).__name__, "attention_mask", attention_mask, embedded.shape[:2])
        hidden, last = read_padded(self.lstm, self.dropout(embedded), attention_mask)
        return RecurrentEncoderOutput(hidden, *(self._by_layer(state) for state in last))

    def _by_layer(self, state: Tensor) -> Tensor:
        """``[layers * directions, B, u]`` to ``[B, layers, D]``."""
        return state.unflatten(0, (self.lstm.num_layers, -1)).permute(2, 0, 1, 3).flatten(2)


def check_mask(owner: str, name: str, mask: Tensor | None, shape: torch.Size) -> None:
    """Raises ``ValueError`` unless the mask has one number for each token."""
    if mask is not None and mask.shape != shape:
        raise ValueError(f"{owner}: expected {name} {list(shape)}, got {list(mask.shape)}")
