"""The LSTMs that read the source and write the target, and the network that turns states into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import constraints
from torch.nn import functional as F
from transformers.utils.generic import ModelOutput

from probattn.distributions import SmoothedCategorical
from probattn.models.lstm import State, check_mask, embed, layered_lstm, read_padded
from probattn.models.translation.recurrent.attention import RecurrentTranslationConfig


@dataclass
class RecurrentEncoderOutput(ModelOutput):
    """States ``[B, S, D]``, 0 at padding, and last hidden and cell state ``[B, layers, D]``, both directions in D."""

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
        layers, dropout, bidirectional = config.num_hidden_layers, config.hidden_dropout, config.bidirectional
        sizes = config.embedding_size, config.hidden_size
        self.lstm = layered_lstm(*sizes, layers, dropout, bidirectional=bidirectional)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> RecurrentEncoderOutput:
        """States of tokens ``[B, S]``, or of their vectors ``[B, S, E]``; the mask is 0 at padding, None without."""
        embedded = embed(self, input_ids, inputs_embeds)
        check_mask(type(self).__name__, "attention_mask", attention_mask, embedded.shape[:2])
        hidden, last = read_padded(self.lstm, self.dropout(embedded), attention_mask)
        return RecurrentEncoderOutput(hidden, *(self._by_layer(state) for state in last))

    def _by_layer(self, state: Tensor) -> Tensor:
        """``[layers * directions, B, u]`` to ``[B, layers, D]``."""
        return state.unflatten(0, (self.lstm.num_layers, -1)).permute(2, 0, 1, 3).flatten(2)


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
    """A one-directional LSTM over the previous tokens, without context, from the encoder's last state on."""

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        size = config.decoder_state_size
        self.dropout = nn.Dropout(config.dropout)
        layers, dropout = config.num_hidden_layers, config.hidden_dropout
        self.lstm = layered_lstm(config.embedding_size, size, layers, dropout, bidirectional=False)
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
    """N: a context and a state to logits, with a ReLU layer between or none (Snell et al. 2021, Eq. 2, A.8)."""

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
    """Log-probabilities of tokens ``[B, T, V]`` over all alignments (Deng et al. 2018, section 2)."""
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


BLOCK = 2**20
"""Logits that are made at once on a CPU, as many as its caches hold."""


class AlignedTokens(TorchDistribution):
    """Tokens given units ``[..., B, T, H]`` of an output network, whose ``logits`` run only where ``counts`` says."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, units: Tensor, logits: nn.Linear, counts: Tensor, smoothing: float = 0.0) -> None:
        self.units = units
        self.logits = logits
        self.counts = counts
        self.smoothing = smoothing
        super().__init__(units.shape[:-1], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Tokens are whole numbers from 0."""
        return constraints.nonnegative_integer

    def expand(self, batch_shape: Sequence[int], _instance: AlignedTokens | None = None) -> AlignedTokens:
        """The same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return AlignedTokens(self.units.expand(*shape, -1), self.logits, self.counts, self.smoothing)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws tokens, int64 ``sample_shape + batch_shape``."""
        return self._tokens(self.units).sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The smoothed log density of observed tokens, of the batch shape; 0 where nothing counts."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        counts = self.counts.expand(shape)
        units, tokens = self.units.expand(*shape, -1)[counts], value.expand(shape)[counts]
        rows = max(1, BLOCK // self.logits.out_features if units.device.type == "cpu" else len(units))
        blocks = zip(units.split(rows), tokens.split(rows), strict=True)
        log_density = torch.cat([self._tokens(block).log_prob(observed) for block, observed in blocks])
        return log_density.new_zeros(shape).masked_scatter(counts, log_density)

    def _tokens(self, units: Tensor) -> SmoothedCategorical:
        logits = self.logits(units)
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return SmoothedCategorical(precise, self.smoothing, validate_args=False)
