"""Sizes of the LSTM encoder-decoder, its dot attention of several heads, and the inference of alignments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probattn.models.dot_product import OwnAttention
from probattn.models.lstm import OwnEncoderDecoderConfig, read_padded
from probattn.sites.masks import MASKED_SCORE


class RecurrentTranslationConfig(OwnEncoderDecoderConfig):
    """Sizes of an LSTM encoder-decoder with dot attention.

    The defaults are those of Snell et al. (2021, appendix A.8): a bidirectional encoder of two layers, 256 everywhere.
    Their copying tasks have ``bidirectional=False, num_hidden_layers=1``.

    Args:
        vocab_size: V, tokens of source and target together, special ones included.
        embedding_size: of a token, the same vectors for source and target.
        hidden_size: u, of the encoder in each direction.
        num_hidden_layers: layers of the encoder, and of the decoder.
        bidirectional: whether the encoder reads from both ends.
        decoder_hidden_size: size of the decoder's states; None for that of the encoder's, 2u or u. With another size a
            linear map takes the encoder's last state to the decoder's first.
        num_attention_heads: K, whose contexts are summed.
        output_size: hidden units of the output network N; 0 for a single linear map.
        dropout: share of the embeddings, of what N is given and of its hidden units that is dropped in training, in
            [0, 1).
        hidden_dropout: the same between the layers of the LSTMs.
        **kwargs: ``uniform_attention=True`` has every token attended to equally, without scores, none of which gets
            a gradient. ``latent_alignment`` says that a network of one head was trained by
            :class:`probattn.models.VariationalTranslator`, and how it answers: ``"mixture"``, with the probability of
            a token over all alignments, or ``"soft"``, from the mean context as any other. The rest is for
            ``PretrainedConfig``. Padding, begin and end are tokens 0, 2 and 3 by default, and the
            decoder starts with "begin".

    Raises:
        ValueError: a size below 1 (``output_size``: 0), a dropout outside [0, 1), or another choice than these.

    Example:
        >>> config = RecurrentTranslationConfig(hidden_size=128)
        >>> config.state_size, config.decoder_state_size
        (256, 256)
    """

    model_type = "probattn_recurrent_translation"

    def __init__(
        self,
        *,
        vocab_size: int = 8000,
        embedding_size: int = 256,
        hidden_size: int = 256,
        num_hidden_layers: int = 2,
        bidirectional: bool = True,
        decoder_hidden_size: int | None = 256,
        num_attention_heads: int = 1,
        output_size: int = 256,
        dropout: float = 0.0,
        hidden_dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.bidirectional = bidirectional
        self.decoder_hidden_size = decoder_hidden_size
        self.num_attention_heads = num_attention_heads
        self.output_size = output_size
        self.dropout = dropout
        self.hidden_dropout = hidden_dropout
        self.uniform_attention = kwargs.pop("uniform_attention", False)
        self.latent_alignment = kwargs.pop("latent_alignment", None)
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        self._check(
            counts=sizes if decoder_hidden_size is None else (*sizes, "decoder_hidden_size"),
            shares=("dropout", "hidden_dropout"),
            naturals=("output_size",),
            flags=("bidirectional", "uniform_attention"),
        )
        self._check_alignment()
        super().__init__(**kwargs)

    @property
    def state_size(self) -> int:
        """D, size of the encoder's states: both directions side by side."""
        return self.hidden_size * (2 if self.bidirectional else 1)

    @property
    def decoder_state_size(self) -> int:
        """E, size of the decoder's states."""
        return self.state_size if self.decoder_hidden_size is None else self.decoder_hidden_size

    @property
    def layer_dropout(self) -> float:
        """Dropout between the LSTM's layers: 0 for a single layer, as torch requires."""
        return self.hidden_dropout if self.num_hidden_layers > 1 else 0.0

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
        self,
        states: Tensor,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
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

    def forward(
        self, source: Tensor, source_mask: Tensor | None, target: Tensor, target_mask: Tensor | None
    ) -> Tensor:
        """Log-probabilities of alignments ``[B, T, S]``; :data:`probattn.sites.masks.MASKED_SCORE` at padding."""
        source_states, _ = read_padded(self.source, self.dropout(self.embed_tokens(source)), source_mask)
        target_states, _ = read_padded(self.target, self.dropout(self.embed_tokens(target)), target_mask)
        scores = torch.einsum("btd,bsd->bts", self.map(target_states), source_states)
        return masked_log_softmax(scores, None if source_mask is None else source_mask[:, None])
