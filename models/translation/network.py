"""Vaswani's Transformer from its configuration, and translating with beam search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedModel

from probattn.models.heads.sequences import Translator
from probattn.models.layers import BEGIN, END, PAD
from probattn.models.program import evaluating, seeded
from probattn.options import Count, Dropout, Options

MIN_POSITIONS = 16
"""Length that leaves room for the dry run of a conversion."""


@dataclass(frozen=True)
class TransformerSize(Options):
    """Size and dropout rates of an encoder-decoder Transformer.

    Args:
        width: size of embeddings and hidden states, even and a multiple of ``heads``.
        layers: number of layers of the encoder and of the decoder.
        heads: number of heads of every attention layer.
        feed_forward: hidden width of the feed-forward layers.
        dropout: dropout rate of embeddings and of every sublayer's output, in [0, 1).
        attention_dropout: dropout rate of attention weights, in [0, 1); not applied to latent weights.
        activation_dropout: dropout rate inside the feed-forward layers, in [0, 1).
        max_positions: maximum number of tokens of a source or target, >= 16.

    Raises:
        ValueError: a number out of its range.
    """

    width: Count = 512
    layers: Count = 6
    heads: Count = 4
    feed_forward: Count = 1024
    dropout: Dropout = 0.3
    attention_dropout: Dropout = 0.0
    activation_dropout: Dropout = 0.0
    max_positions: Annotated[int, Ge(MIN_POSITIONS)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"TransformerSize.width: expected an even multiple of heads ({self.heads}), got {self.width}"
            )


def build_transformer(size: TransformerSize, vocabulary: int, *, seed: int = 0) -> MarianMTModel:
    r"""Builds an encoder-decoder Transformer with random weights (Vaswani et al. 2017), which can be converted.

    It is transformers' ``MarianMTModel`` with sinusoidal positions, layer normalisation after each sublayer, ReLU, and
    one embedding matrix for source, target and output; embeddings are multiplied by :math:`\sqrt{\text{width}}`.
    Weights are drawn from a normal distribution with standard deviation :math:`1 / \sqrt{\text{width}}`. Tokens 0 to 3
    are padding, unknown, begin and end; the decoder starts with "begin".

    Args:
        size: sizes and dropout rates.
        vocabulary: number V of tokens of source and target together, special tokens included.
        seed: seed of the weights.

    Returns:
        The network, in training mode.

    Raises:
        ValueError: a vocabulary of fewer than 5 tokens.

    Example:
        >>> net = build_transformer(TransformerSize(width=8, layers=1, heads=2, feed_forward=8), vocabulary=9)
        >>> net.num_parameters()
        1304
    """
    if vocabulary <= END + 1:
        raise ValueError(
            f"build_transformer: expected a vocabulary of at least {END + 2} tokens, got {vocabulary}"
        )
    stack = {"layers": size.layers, "attention_heads": size.heads, "ffn_dim": size.feed_forward}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in stack.items()}
    sizes |= {"vocab_size": vocabulary, "d_model": size.width, "max_position_embeddings": size.max_positions}
    names = ("dropout", "attention_dropout", "activation_dropout")
    dropouts = {name: getattr(size, name) for name in names}
    form = {"activation_function": "relu", "scale_embedding": True, "init_std": size.width**-0.5}
    special = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
    special["decoder_start_token_id"] = BEGIN
    make: Any = MarianConfig
    with seeded(seed):
        net = MarianMTModel(make(**sizes, **dropouts, **form, **special, forced_eos_token_id=None))
    net.generation_config = GenerationConfig(**special)
    for side in (net.model.encoder, net.model.decoder):
        # Positions are computed and get no gradient, which several processes would wait for.
        positions = side.embed_positions
        weight = positions.weight.detach()
        del positions.weight
        positions.register_buffer("weight", weight)
    return net.train()


class Vocabulary(Protocol):
    """Vocabulary as the search uses it; :class:`probattn.data.Subwords` is one."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a sentence, without special ones."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The sentence of tokens, special ones left out."""
        ...


@dataclass(frozen=True)
class SearchOptions(Options):
    r"""Options of the beam search for a translation.

    Args:
        num_beams: number of beams, >= 1; 1 is greedy search.
        length_penalty: exponent a: finished hypotheses are ranked by log-probability / length^a, so larger values
            favour longer ones. Vaswani et al. 2017 divide by ((5 + length) / 6)^0.6 instead.
        extra_length: maximum number of tokens by which a translation is longer than the longest source of its batch, >=
            1; 50 in Vaswani et al. 2017. The network's number of positions is a further limit.
        batch_size: number of sentences that are translated at once, >= 1.

    Raises:
        ValueError: a number out of its range.
    """

    num_beams: Count = 5
    length_penalty: float = 1.0
    extra_length: Count = 50
    batch_size: Count = 64


def translate(
    model: Translator,
    sources: Sequence[str],
    vocabulary: Vocabulary,
    options: SearchOptions | None = None,
    *,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> list[str]:
    """Translates sentences by transformers' beam search; latent attention weights are at their posterior expectation.

    The translations are deterministic. Sentences of similar length are translated in one batch; the longest source of a
    batch sets the maximum length of its translations.

    Args:
        model: a :class:`Translator` whose network has ``generate``. It runs in evaluation mode without gradients; its
            mode is restored afterwards.
        sources: the sentences; the translation of a blank sentence is empty.
        vocabulary: converts sentences to tokens and back, such as :class:`probattn.data.Subwords`.
        options: options of the search. Default: ``SearchOptions()``.
        progress: function that wraps the sequence of batches to show progress, such as ``tqdm``.

    Returns:
        One translation per source, in the order of ``sources``.

    Raises:
        TypeError: ``sources`` is a string.
        ValueError: the network has no ``generate``, or a source has more tokens than the network has positions.
    """
    if isinstance(sources, str):
        raise TypeError(
            f"translate: expected a list of sentences, got the sentence {sources!r}; put it in a list"
        )
    options = options or SearchOptions()
    net = cast(PreTrainedModel, model.net)
    encoded = [vocabulary.encode(source) for source in sources]
    limit = _position_limit(net, encoded)
    translations = [""] * len(encoded)
    order = sorted((row for row, tokens in enumerate(encoded) if tokens), key=lambda row: len(encoded[row]))
    with evaluating(model):
        for start in progress(range(0, len(order), options.batch_size)):
            rows = order[start : start + options.batch_size]
            outputs = _search(net, [encoded[row] for row in rows], options, limit)
            for row, tokens in zip(rows, outputs, strict=True):
                translations[row] = vocabulary.decode(tokens)
    return translations


def _position_limit(net: nn.Module, encoded: Sequence[Sequence[int]]) -> int | None:
    """Most tokens the network has positions for; None where there is no most."""
    config: Any = getattr(net, "config", None)
    if not hasattr(net, "generate"):
        network = type(net).__name__
        raise ValueError(f"translate: {network} has no generate; use an encoder-decoder of transformers")
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None:
        return None
    longest = max((len(tokens) for tokens in encoded), default=0) + 1
    if longest > limit:
        raise ValueError(
            f"translate: the longest source has {longest} tokens with its end, more than the network's {limit} "
            "positions; shorten it"
        )
    return limit


def _search(
    net: PreTrainedModel, sources: Sequence[Sequence[int]], options: SearchOptions, limit: int | None
) -> list[list[int]]:
    """Tokens of the best hypothesis of each source."""
    longest = max(map(len, sources)) + 1
    longest_target = longest + options.extra_length
    rows = [[*tokens, END] + [PAD] * (longest - 1 - len(tokens)) for tokens in sources]
    input_ids = torch.tensor(rows, device=net.device)  # [B, S]
    generate: Any = net.generate
    search = {"num_beams": options.num_beams, "length_penalty": options.length_penalty, "do_sample": False}
    length = longest_target if limit is None else min(longest_target, limit - 1)
    inputs = {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long()}
    limits = {"max_new_tokens": length, "suppress_tokens": [PAD, BEGIN]}
    output: Tensor = generate(**inputs, **search, **limits)  # [B, T]
    return [[token for token in row if token > END] for row in output.tolist()]
