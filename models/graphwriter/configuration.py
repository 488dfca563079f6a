"""Sizes of GraphWriter."""

from __future__ import annotations

from typing import Any

from probattn.models.lstm import OwnEncoderDecoderConfig


class GraphWriterConfig(OwnEncoderDecoderConfig):
    """Sizes of a network that writes a text about a title and a knowledge graph.

    The defaults are those of Koncel-Kedziorski et al. (2019) and of their released settings.

    Args:
        vocab_size: V, words of titles, entities and texts, special ones included.
        num_relations: R, kinds of relations.
        hidden_size: d, of words, vertices and the decoder's state, an even multiple of ``num_attention_heads``.
        num_hidden_layers: blocks of the graph transformer.
        num_attention_heads: of every attention call.
        feed_forward_size: hidden units of a block; None for 4 d.
        lstm_layers: of the bidirectional LSTMs that read titles and entities.
        dropout: share of embeddings, of states that the output reads and of what a block's layers give that is dropped
            in training, in [0, 1).
        attention_dropout: the same of the attention weights between vertices; latent weights have none.
        **kwargs: the rest is for ``PretrainedConfig``. Padding, begin and end are tokens 0, 2 and 3 by default, and the
            decoder starts with "begin".

    Raises:
        ValueError: a size below 1, one that does not fit the heads, or a dropout outside [0, 1).

    Example:
        >>> GraphWriterConfig(hidden_size=64).feed_forward_size
        256
    """

    model_type = "probattn_graphwriter"

    def __init__(
        self,
        *,
        vocab_size: int = 10_000,
        num_relations: int = 7,
        hidden_size: int = 500,
        num_hidden_layers: int = 6,
        num_attention_heads: int = 4,
        feed_forward_size: int | None = None,
        lstm_layers: int = 2,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_relations = num_relations
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.feed_forward_size = 4 * hidden_size if feed_forward_size is None else feed_forward_size
        self.lstm_layers = lstm_layers
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        sizes = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "feed_forward_size",
            "lstm_layers",
        )
        self._check(("vocab_size", "num_relations", *sizes), shares=("dropout", "attention_dropout"))
        if self.hidden_size % self.num_attention_heads or self.hidden_size % 2:
            raise ValueError(
                f"GraphWriterConfig.hidden_size: expected an even multiple of the heads ({self.num_attention_heads}), "
                f"got {self.hidden_size}"
            )
        super().__init__(**kwargs)
