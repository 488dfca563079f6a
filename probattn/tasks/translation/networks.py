"""The networks of recipes of translation."""

from __future__ import annotations

from transformers import PreTrainedModel

from probattn.models import (
    RecurrentForTranslation,
    RecurrentTranslationConfig,
    TransformerSize,
    build_transformer,
)
from probattn.models.program import seeded
from probattn.tasks.translation.recipe import TranslationNetworkRecipe, TranslationRecipe

TITLES = {"transformer": "Transformer", "lstm": "LSTM"}
"""What the networks are called in messages and reports."""


def build_network(recipe: TranslationRecipe, vocabulary: int) -> PreTrainedModel:
    """The recipe's network with random weights, a function of the seed, deterministic attention, in training mode."""
    network, seed = recipe.network, recipe.training.seed
    if network.name == "lstm":
        with seeded(seed):
            return RecurrentForTranslation(recurrent_config(network, vocabulary)).train()
    size = TransformerSize(
        width=network.width,
        layers=network.layers,
        heads=network.heads,
        feed_forward=network.feed_forward,
        dropout=network.dropout,
        attention_dropout=network.attention_dropout,
        activation_dropout=network.activation_dropout,
        max_positions=recipe.translation.max_length,
    )
    return build_transformer(size, vocabulary, seed=seed)


def recurrent_config(network: TranslationNetworkRecipe, vocabulary: int) -> RecurrentTranslationConfig:
    """The configuration of a recipe's LSTM."""
    return RecurrentTranslationConfig(
        vocab_size=vocabulary,
        embedding_size=network.width,
        hidden_size=network.width,
        num_hidden_layers=network.layers,
        bidirectional=network.bidirectional,
        decoder_hidden_size=network.width,
        num_attention_heads=network.heads,
        output_size=network.width if network.output_width is None else network.output_width,
        dropout=network.dropout,
        hidden_dropout=network.recurrent_dropout,
        uniform_attention=network.uniform_attention,
    )


def network_words(recipe: TranslationRecipe) -> str:
    """The network in words, for its report."""
    network, options = recipe.network, recipe.translation
    heads = f"{network.heads} head{'s' if network.heads > 1 else ''}"
    words = [TITLES[network.name], f"{network.layers} + {network.layers} layers x {network.width}"]
    if network.name == "lstm":
        words += ["bidirectional"] if network.bidirectional else ["one-directional"]
        words += [heads] + (["uniform attention"] if network.uniform_attention else [])
    else:
        words += [heads, f"feed-forward {network.feed_forward}"]
    return ", ".join([*words, f"{options.subwords:,} subwords ({options.subword_model})"])
