"""Vaswani's Transformer, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import GenerationConfig, MarianConfig, MarianMTModel

from probattn.models.program import seeded

PAD, UNKNOWN, BEGIN, END = range(4)
"""Numbers of the special tokens, which :class:`probattn.data.Subwords` gives them too."""

LEAST_POSITIONS = 16
"""Length that leaves room for the dry run of a conversion."""


@dataclass(frozen=True)
class TransformerSize:
    """Size and regularisation of an encoder-decoder.

    Args:
        width: size of embeddings and hidden states, a multiple of ``heads`` and even.
        layers: of the encoder, and of the decoder.
        heads: of every attention call.
        feed_forward: hidden width of the feed-forward layers.
        dropout: of embeddings and of every sublayer's output, in [0, 1).
        attention_dropout: of attention weights, in [0, 1); stochastic weights have none.
        activation_dropout: inside the feed-forward layers, in [0, 1).
        max_positions: longest source or target in tokens, >= 16.

    Raises:
        ValueError: a number out of its range.
    """

    width: int = 512
    layers: int = 6
    heads: int = 4
    feed_forward: int = 1024
    dropout: float = 0.3
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    max_positions: int = 256

    def __post_init__(self) -> None:
        if self.max_positions < LEAST_POSITIONS:
            raise ValueError(
                f"TransformerSize.max_positions: expected an integer >= {LEAST_POSITIONS}, got {self.max_positions}"
            )
        for name in ("width", "layers", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"TransformerSize.{name}: expected an integer >= 1, got {getattr(self, name)}"
                )
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"TransformerSize.{name}: expected a number in [0, 1), got {getattr(self, name)}"
                )
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"TransformerSize.width: expected an even multiple of heads ({self.heads}), got {self.width}"
            )


def build_transformer(size: TransformerSize, vocabulary: int, *, seed: int = 0) -> MarianMTModel:
    r"""An encoder-decoder Transformer with random weights (Vaswani et al. 2017); any method can be put on it.

    It is transformers' ``MarianMTModel``: sinusoidal positions, layer norms after each sublayer, ReLU, and one
    embedding matrix for source, target and output, scaled by the root of the width where it embeds. Weights are drawn
    from a normal distribution of standard deviation :math:`1 / \sqrt{\text{width}}`. Tokens 0 to 3 are padding,
    unknown, begin and end; the decoder starts with "begin".

    Args:
        size: of the network.
        vocabulary: V, number of tokens of source and target together, special ones included.
        seed: of the weights.

    Returns:
        The network, in training mode.

    Raises:
        ValueError: fewer than 5 tokens.

    Example:
        >>> net = build_transformer(TransformerSize(width=8, layers=1, heads=2, feed_forward=8), vocabulary=9)
        >>> net.num_parameters()
        1304
    """
    if vocabulary <= END + 1:
        raise ValueError(
            f"build_transformer: expected a vocabulary of at least {END + 2} tokens, got {vocabulary}"
        )
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.feed_forward,
        decoder_ffn_dim=size.feed_forward,
        dropout=size.dropout,
        attention_dropout=size.attention_dropout,
        activation_dropout=size.activation_dropout,
        max_position_embeddings=size.max_positions,
        activation_function="relu",
        scale_embedding=True,
        init_std=size.width**-0.5,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=BEGIN,
    )
    with seeded(seed):
        net = MarianMTModel(config)
    net.generation_config = GenerationConfig(
        pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END, decoder_start_token_id=BEGIN
    )
    for stack in (net.model.encoder, net.model.decoder):
        # Positions are computed and get no gradient, which several processes would wait for.
        positions = stack.embed_positions
        weight = positions.weight.detach()
        del positions.weight
        positions.register_buffer("weight", weight)
    return net.train()
