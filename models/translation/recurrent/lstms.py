"""The LSTM encoder-decoder's sizes, LSTMs and dot attention, its output network, and the inference of alignments."""

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
from probattn.models.layers import (
    CHECKS,
    Attended,
    Mask,
    OwnAttention,
    OwnEncoderDecoderConfig,
    State,
    check_mask,
    deep_lstm,
    embed,
    read_padded,
)
from probattn.options import Count, Dropout, Natural
from probattn.sites.masks import MASKED_SCORE


class RecurrentTranslationConfig(OwnEncoderDecoderConfig):
    """Sizes of an LSTM encoder-decoder with dot attention.

    The defaults are those of Snell et al. (2021, appendix A.8): a bidirectional encoder of two layers, and size 256 for
    embeddings, states and output network. Their copying tasks have ``bidirectional=False, num_hidden_layers=1``.

    Args:
        vocab_size: number V of tokens of source and target together, special tokens included.
        embedding_size: size of a token's embedding, which source and target share.
        hidden_size: size u of the encoder's states in each direction.
        num_hidden_layers: number of LSTM layers of the encoder and of the decoder.
        bidirectional: whether the encoder reads the source in both directions.
        decoder_hidden_size: size of the decoder's states; None for the size of the encoder's states, 2u or u. If the
            two sizes differ, a linear map makes the decoder's first state from the encoder's last.
        num_attention_heads: number K of attention heads, whose contexts are summed.
        output_size: hidden units of the output network N; 0 for a single linear map.
        dropout: dropout rate of embeddings, of the inputs of N and of its hidden units, in [0, 1).
        hidden_dropout: dropout rate between the layers of the LSTMs, in [0, 1).
        **kwargs: With ``uniform_attention=True`` all source tokens have equal weight. ``latent_alignment`` is the
            prediction method of a network that :class:`probattn.models.VariationalTranslator` trained: "mixture"
            (probability of a token over all alignments) or "soft" (from the mean context, as without alignments). All
            others are options of ``PretrainedConfig``. Padding, begin and end are tokens 0, 2 and 3 by default; the
            decoder starts with "begin".

    Raises:
        ValueError: a size below 1 (``output_size``: below 0), a dropout rate outside [0, 1), or an invalid value of
            ``uniform_attention`` or ``latent_alignment``.

    Example:
        >>> config = RecurrentTranslationConfig(hidden_size=128)
        >>> config.state_size, config.decoder_state_size
        (256, 256)
    """

    model_type = "probattn_recurrent_translation"

    def __init__(
        self,
        *,
        vocab_size: Count = 8000,
        embedding_size: Count = 256,
        hidden_size: Count = 256,
        num_hidden_layers: Count = 2,
        bidirectional: bool = True,
        decoder_hidden_size: Count | None = 256,
        num_attention_heads: Count = 1,
        output_size: Natural = 256,
        dropout: Dropout = 0.0,
        hidden_dropout: Dropout = 0.5,
        **kwargs: Any,
    ) -> None:
        self._take(RecurrentTranslationConfig.__init__, locals())
        self.uniform_attention = kwargs.pop("uniform_attention", False)
        self.latent_alignment = kwargs.pop("latent_alignment", None)
        CHECKS[bool](type(self).__name__, "uniform_attention", self.uniform_attention)
        self._check_alignment()
        super().__init__(**kwargs)

    @property
    def state_size(self) -> int:
        """Size D of the encoder's states: 2u, both directions concatenated, or u if ``bidirectional`` is False."""
        return self.hidden_size * (2 if self.bidirectional else 1)

    @property
    def decoder_state_size(self) -> int:
        """Size E of the decoder's states."""
        return self.state_size if self.decoder_hidden_size is None else self.decoder_hidden_size

    def _check_alignment(self) -> None:
        if self.latent_alignment not in (None, "mixture", "soft"):
            raise ValueError(
                "RecurrentTranslationConfig.latent_alignment: expected 'mixture', 'soft' or None, got "
                f"{self.latent_alignment!r}"
            )
        if self.latent_alignment is not None and self.num_attention_heads > 1:
            raise ValueError(
                "RecurrentTranslationConfig.latent_alignment: expected one attention head, since a token has one "
                f"alignment, got {self.num_attention_heads}"
            )


class DotAttention(OwnAttention):
    """Luong's "general" attention, heads summed and not scaled (Luong et al. 2015; Snell et al. 2021, Eq. 20, 21)."""

    is_decoder = True  # by which conversion knows that the queries are those of a decoder

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__(config)
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(config.decoder_state_size, self.num_heads * config.state_size, bias=False)

    def head_weights(self) -> Tensor:
        """A view ``[K, E, D]`` of all W: writing into row k without gradients sets the weights of head k."""
        return self.query.weight.unflatten(0, (self.num_heads, -1)).transpose(1, 2)

    def forward(
        self, states: Tensor, hidden: Tensor, attention_mask: Mask = None, query_mask: Mask = None
    ) -> Attended:
        """c ``[B, T, D]`` and the weights ``[B, K, T, S]``, if any, of s ``[B, T, E]`` and h ``[B, S, D]``."""
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
    """Logarithm of a softmax over S, float32 or better; the finite ``MASKED_SCORE`` where the mask is 0."""
    # Half precision has no room for the score of padding, and half as many digits as a divergence needs.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.log_softmax(dim=-1)
    padding = ~mask.bool()
    return scores.masked_fill(padding, MASKED_SCORE).log_softmax(dim=-1).masked_fill(padding, MASKED_SCORE)


class AlignmentInference(nn.Module):
    """Scores of source tokens for each target token from LSTMs of its own over both (Deng et al. 2018, section 4)."""

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__()
        size, width = config.embedding_size, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, size, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.source = nn.LSTM(size, width, batch_first=True, bidirectional=True)
        self.target = nn.LSTM(size, width, batch_first=True, bidirectional=True)
        self.map = nn.Linear(2 * width, 2 * width, bias=False)

    def forward(self, source: Tensor, source_mask: Mask, target: Tensor, target_mask: Mask) -> Tensor:
        """Log-probabilities of alignments ``[B, T, S]``; :data:`probattn.sites.masks.MASKED_SCORE` at padding."""
        source_states, _ = read_padded(self.source, self.dropout(self.embed_tokens(source)), source_mask)
        target_states, _ = read_padded(self.target, self.dropout(self.embed_tokens(target)), target_mask)
        scores = torch.einsum("btd,bsd->bts", self.map(target_states), source_states)
        return masked_log_softmax(scores, None if source_mask is None else source_mask[:, None])


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
        self.lstm = deep_lstm(*sizes, layers, dropout, bidirectional=bidirectional)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Mask = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> RecurrentEncoderOutput:
        """States of tokens ``[B, S]``, or of their vectors ``[B, S, E]``; the mask is 0 at padding, None without."""
        embedded = embed(self, input_ids, inputs_embeds)
        check_mask(type(self).__name__, "attention_mask", attention_mask, embedded.shape[:2])
        hidden, last = read_padded(self.lstm, self.dropout(embedded), attention_mask)
        # [layers * directions, B, u] to [B, layers, D]
        by_layer = (state.unflatten(0, (self.lstm.num_layers, -1)).permute(2, 0, 1, 3) for state in last)
        return RecurrentEncoderOutput(hidden, *(state.flatten(2) for state in by_layer))


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
        self.lstm = deep_lstm(config.embedding_size, size, layers, dropout, bidirectional=False)
        self.start: nn.ModuleDict | None = None
        if config.state_size != size:
            maps = {name: nn.Linear(config.state_size, size) for name in ("hidden", "cell")}
            self.start = nn.ModuleDict(maps)

    def forward(
        self, embedded: Tensor, mask: Mask, encoded: RecurrentEncoderOutput, past: DecoderState | None
    ) -> tuple[Tensor, DecoderState]:
        """States s ``[B, T, E]`` of target tokens ``[B, T, embedding]``, 0 at padding, and the next cache."""
        start = self.first_state(encoded) if past is None else (past.hidden, past.cell)
        states, (hidden, cell) = read_padded(self.lstm, self.dropout(embedded), mask, start)
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
        return self.logits(self.units(context, state))

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


def mixture_log_probs(output: OutputNetwork, hidden: Tensor, states: Tensor, log_weights: Tensor) -> Tensor:
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
