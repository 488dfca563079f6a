"""The LSTM that reads the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from probattn.models.own_words import read_own_words
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig


@dataclass
class RecurrentEncoderOutput(ModelOutput):
    """What the encoder found; all of it with the batch first, as a search wants it.

    Attributes:
        last_hidden_state: h, ``[B, S, D]``, 0 at padding.
        final_hidden: the LSTM's hidden state after the last token of each layer, directions side by side,
            ``[B, layers, D]``.
        final_cell: its cell state, likewise.
    """

    last_hidden_state: Tensor | None = None
    final_hidden: Tensor | None = None
    final_cell: Tensor | None = None


class RecurrentEncoder(nn.Module):
    """Tokens to states. Padding, wherever it stands, takes no part.

    Args:
        config: sizes.

    Attributes:
        embed_tokens: vectors of tokens, those of the decoder too.
        lstm: torch's own.
    """

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
        """Reads sentences.

        Args:
            input_ids: int64 ``[B, S]``, S >= 1.
            attention_mask: ``[B, S]``, 0 at padding; None where there is none.
            inputs_embeds: tokens as vectors ``[B, S, E]`` in place of their numbers.

        Returns:
            The states.

        Raises:
            ValueError: both kinds of tokens or neither, or a mask that is not ``[B, S]``.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__}: expected input_ids or inputs_embeds, one of them")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        check_mask(type(self).__name__, "attention_mask", attention_mask, embedded.shape[:2])
        hidden, last = read_own_words(self.lstm, self.dropout(embedded), attention_mask)
        return RecurrentEncoderOutput(hidden, *(self._by_layer(state) for state in last))

    def _by_layer(self, state: Tensor) -> Tensor:
        """``[layers * directions, B, u]`` to ``[B, layers, D]``."""
        return state.unflatten(0, (self.lstm.num_layers, -1)).permute(2, 0, 1, 3).flatten(2)


def check_mask(owner: str, name: str, mask: Tensor | None, shape: torch.Size) -> None:
    """Checks that there is a number for each token.

    Raises:
        ValueError: another shape.
    """
    if mask is not None and mask.shape != shape:
        raise ValueError(f"{owner}: expected {name} {list(shape)}, got {list(mask.shape)}")
