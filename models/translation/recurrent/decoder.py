"""The LSTM that writes the target, and the network that turns its states into tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.lstm import State, read_padded
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig
from probattn.models.translation.recurrent.encoder import RecurrentEncoderOutput


@dataclass(eq=False)
class DecoderState:
    """State after ``length`` tokens, the cache of ``generate``; ``hidden`` and ``cell`` are ``[layers, B, E]``."""

    hidden: Tensor
    cell: Tensor
    length: int

    def get_seq_length(self) -> int:
        """Tokens read, as transformers' caches tell it."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps the rows of these beams, in place."""
        self.hidden = self.hidden.index_select(1, beam_idx)
        self.cell = self.cell.index_select(1, beam_idx)


class RecurrentDecoder(nn.Module):
    """A one-directional LSTM over the previous tokens, without context; it starts from the encoder's last state.

    ``start`` maps that state to the decoder's size, the same for all layers; None where both have one size.
    """

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        size = config.decoder_state_size
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.embedding_size,
            size,
            config.num_hidden_layers,
            batch_first=True,
            dropout=config.layer_dropout,
        )
        bridged = config.state_size != size
        self.start = (
            nn.ModuleDict({name: nn.Linear(config.state_size, size) for name in ("hidden", "cell")})
            if bridged
            else None
        )

    def forward(
        self,
        embedded: Tensor,
        attention_mask: Tensor | None,
        encoded: RecurrentEncoderOutput,
        past: DecoderState | None,
    ) -> tuple[Tensor, DecoderState]:
        """States s ``[B, T, E]`` of target tokens ``[B, T, embedding]``, 0 at padding, and the next cache."""
        start = self.first_state(encoded) if past is None else (past.hidden, past.cell)
        states, (hidden, cell) = read_padded(self.lstm, self.dropout(embedded), attention_mask, start)
        read = embedded.shape[1] + (0 if past is None else past.length)
        return states, DecoderState(hidden, cell, read)

    def first_state(self, encoded: RecurrentEncoderOutput) -> State:
        """The state it starts from, hidden and cell ``[layers, B, E]``."""
        hidden, cell = encoded.final_hidden, encoded.final_cell
        assert hidden is not None
        assert cell is not None
        if self.start is not None:
            hidden, cell = self.start["hidden"](hidden), self.start["cell"](cell)
        return hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous()


class OutputNetwork(nn.Module):
    r"""N: a context and a state to logits, with a ReLU layer between or none (Snell et al. 2021, Eq. 2, A.8).

    .. math:: N([c, s]) = U\, \mathrm{ReLU}(V [c, s] + a) + b
    """

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        self.split = config.state_size
        features = config.state_size + config.decoder_state_size
        self.dropout = nn.Dropout(config.dropout)
        self.dense = nn.Linear(features, config.output_size) if config.output_size else None
        self.logits = nn.Linear(config.output_size or features, config.vocab_size)

    def forward(self, context: Tensor, state: Tensor) -> Tensor:
        """Logits ``[..., V]`` of contexts ``[..., D]`` and states ``[..., E]``, whose leading dimensions broadcast."""
        logits: Tensor = self.logits(self.units(context, state))
        return logits

    def units(self, context: Tensor, state: Tensor) -> Tensor:
        """Input of the last linear map, ``[..., H]``; arguments are those of :meth:`forward`."""
        context, state = self.dropout(context), self.dropout(state)
        if self.dense is None:
            shape = torch.broadcast_shapes(context.shape[:-1], state.shape[:-1])
            return torch.cat([tensor.expand(*shape, -1) for tensor in (context, state)], dim=-1)
        # The map of [c, s] in two parts: for pairs of positions each is computed once and not for every pair.
        of_context = F.linear(context, self.dense.weight[:, : self.split], self.dense.bias)
        combined = of_context + F.linear(state, self.dense.weight[:, self.split :])
        return self.dropout(torch.relu(combined))


LOGITS = 2**24
"""Logits that exist at once: 64 MiB in float32."""


def mixture_log_probabilities(
    output: OutputNetwork, hidden: Tensor, states: Tensor, log_weights: Tensor
) -> Tensor:
    r"""Log-probabilities of tokens ``[B, T, V]`` over all alignments of each with one state of the encoder.

    .. math:: \log \sum_l \alpha_{t,l}\, \mathrm{softmax}(N([h_l, s_t]))

    (Deng et al. 2018, section 2), for h ``[B, S, D]``, s ``[B, T, E]`` and :math:`\log \alpha` ``[B, T, S]``. Source
    positions are taken a few at a time.
    """
    batch, steps, length = log_weights.shape
    size = max(1, LOGITS // max(1, batch * steps * output.logits.out_features))
    total: Tensor | None = None
    for start in range(0, length, size):
        chunk = slice(start, start + size)
        logits = output(hidden[:, None, chunk], states[:, :, None])  # [B, T, few, V]
        joint = logits.log_softmax(dim=-1, dtype=log_weights.dtype) + log_weights[:, :, chunk, None]
        block = joint.logsumexp(dim=2)
        total = block if total is None else torch.logaddexp(total, block)
    assert total is not None
    return total
