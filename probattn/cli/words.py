"""Networks that are built from nothing: their vocabulary, their word vectors and themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from probattn.cli.errors import CommandError, one_line
from probattn.data import TextDataset, WordVectors, word_tokenizer, word_vectors
from probattn.models import SelfAttentiveConfig, SelfAttentiveForSequenceClassification
from probattn.recipes import NetworkRecipe
from probattn.recipes.network import VocabularyRecipe


@dataclass(frozen=True)
class Words:
    """The words of a network that is built from nothing.

    Attributes:
        tokenizer: knows the words of the training texts.
        vectors: what they start from; None for random ones.
    """

    tokenizer: Any
    vectors: WordVectors | None

    def __str__(self) -> str:
        """How many there are, and how many have a vector."""
        said = f"vocabulary: {len(self.tokenizer):,} words, padding and unknown ones included"
        if self.vectors is None:
            return said
        return f"{said}; {self.vectors.found:,} have a vector ({self.vectors.coverage:.1%} of the rest)"


def make_words(network: NetworkRecipe, data: TextDataset, *, seed: int) -> Words:
    """The vocabulary of the training texts and its vectors.

    Args:
        network: asks for them.
        data: the training texts.
        seed: of the vectors of words that have none.

    Raises:
        CommandError: the texts are pairs.
        DataError: no words, or no vectors.
    """
    if data.pairs is not None:
        raise CommandError(f"network {network.name!r}: expected single texts, got pairs ({data.source})")
    options = network.vocabulary or VocabularyRecipe()
    tokenizer = word_tokenizer(data.texts, **options.model_dump())
    if network.embeddings is None:
        return Words(tokenizer, None)
    return Words(tokenizer, word_vectors(tokenizer.get_vocab(), network.embeddings, seed=seed))


def build_network(network: NetworkRecipe, words: Words | None = None, **options: Any) -> PreTrainedModel:
    """The network with new weights, drawn from torch's generator, and the vectors of its words.

    Args:
        network: what it is like.
        words: its words; None for the configuration's number of them, all random.
        **options: further entries of its configuration.

    Raises:
        CommandError: the configuration is not one, or does not fit the words.
    """
    given: dict[str, Any] = dict(network.config)
    if words is not None:
        given["vocab_size"] = len(words.tokenizer)
        given["pad_token_id"] = words.tokenizer.pad_token_id
        if words.vectors is not None:
            size = words.vectors.weight.shape[1]
            if given.setdefault("embedding_size", size) != size:
                raise CommandError(
                    f"network.config: expected embedding_size {size}, that of the vectors, got "
                    f"{given['embedding_size']}; leave it out"
                )
    unknown = given.keys() - SelfAttentiveConfig().to_dict().keys()
    if unknown:
        raise CommandError(f"network.config: {network.name!r} has no entry {min(unknown)!r}")
    try:
        net = SelfAttentiveForSequenceClassification(SelfAttentiveConfig(**given, **options))
    except (TypeError, ValueError) as error:
        raise CommandError(f"network.config: {one_line(error)}") from error
    if words is not None and words.vectors is not None:
        with torch.no_grad():
            net.sentence.embed_tokens.weight.copy_(words.vectors.weight)
    return net
