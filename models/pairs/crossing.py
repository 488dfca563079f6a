"""What networks of two texts share: which words are of which text, and attention from each text to the other."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from probattn.models.dot_product import (
    additive_mask,
    attention_function,
    eager_attention_forward,
    valid_places,
)
from probattn.models.lstm import OwnPreTrainedModel

__all__ = [
    "CrossAttention",
    "OneWayAttention",
    "PairConfig",
    "PairPreTrainedModel",
    "Sides",
    "eager_attention_forward",
    "hidden_layers",
]


class PairConfig(PretrainedConfig):
    """Sizes that networks of two texts have in common.

    Args:
        vocab_size: number of words.
        embedding_size: of a word.
        hidden_size: of a hidden layer, or of an LSTM in each direction.
        dropout: share of the numbers that is dropped before each map in training, in [0, 1).
        freeze_embeddings: whether words keep the vectors that they start from.
        **kwargs: the rest is for ``PretrainedConfig``, such as ``num_labels``; ``pad_token_id`` is 0 if left out.

    Raises:
        ValueError: a size below 1, or a dropout outside [0, 1).
    """

    def __init__(
        self,
        *,
        vocab_size: int = 20_000,
        embedding_size: int = 300,
        hidden_size: int = 200,
        dropout: float = 0.2,
        freeze_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.freeze_embeddings = freeze_embeddings
        for name in ("vocab_size", "embedding_size", "hidden_size"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{type(self).__name__}.{name}: expected an integer >= 1, got {size!r}")
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise ValueError(f"{type(self).__name__}.dropout: expected a number in [0, 1), got {dropout!r}")
        super().__init__(**{"pad_token_id": 0} | kwargs)


class Sides(NamedTuple):
    """The words of each of two texts that stand in one row, bool ``[B, S]``."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, words: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Sides:
        """Those of words ``[B, S, E]``, by mask and types ``[B, S]``; without types both texts are the whole row."""
        real = valid_places(attention_mask, words)
        if token_type_ids is None:
            return cls(real, real)
        return cls(real & (token_type_ids == 0), real & (token_type_ids == 1))


class OneWayAttention(nn.Module):
    """Some words of a row attend to others of it, by one head."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config

    def forward(
        self, compared: Tensor, hidden: Tensor, queries: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """What ``queries`` find among ``keys``, bool ``[B, S]`` both: ``[B, S, E]``, and the map ``[B, 1, S, S]``."""
        mask = additive_mask(queries[:, None, :, None] & keys[:, None, None, :], hidden.dtype)
        output, weights = attention_function(self.config)(
            self,
            compared[:, None],
            compared[:, None],
            hidden[:, None],
            mask,
            scaling=1.0,
            dropout=0.0,
            query_mask=queries,
        )
        return output[:, :, 0], None if weights is None else weights * queries[:, None, :, None]


class CrossAttention(nn.Module):
    r"""Each text's words attend to the other's, by dot products.

    .. math:: e_{ij} = q_i^\top k_j, \quad
        \beta_i = \textstyle\sum_j \mathrm{softmax}_j(e_{ij})\, b_j, \quad
        \alpha_j = \textstyle\sum_i \mathrm{softmax}_i(e_{ij})\, a_i

    (Parikh et al. 2016, Eq. 1 and 2; Chen et al. 2017, Eq. 11 to 13). Both texts stand in one row. It is two attention
    calls, the first text's words and then the second's as queries, over maps of all words of the row, in which other
    pairs are 0. Since they have no pair in common each is a stack of its own.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleDict({"attention": OneWayAttention(config)}) for _ in range(2))

    def forward(self, compared: Tensor, hidden: Tensor, sides: Sides) -> tuple[Tensor, list[Tensor | None]]:
        """What each word finds in the other text, ``[B, S, E]``, and the two maps ``[B, 1, S, S]``, if there are some.

        Args:
            compared: queries and keys ``[B, S, D]``.
            hidden: values ``[B, S, E]``.
            sides: the words of the texts.
        """
        of_second, first = self.first["attention"](compared, hidden, *sides)
        of_first, second = self.second["attention"](compared, hidden, *sides[::-1])
        return torch.where(sides.first[..., None], of_second, of_first), [first, second]


class PairPreTrainedModel(OwnPreTrainedModel):
    """Base of networks that classify two texts in one row, told apart by ``token_type_ids``."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.num_labels = config.num_labels
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.embed_tokens.weight.requires_grad_(not config.freeze_embeddings)

    @abstractmethod
    def classify(self, words: Tensor, sides: Sides) -> tuple[Tensor, list[Tensor | None]]:
        """Logits ``[B, C]`` and the two maps of words ``[B, S, E]``."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Classifies pairs of texts.

        Args:
            input_ids: numbers of the words of both texts, int64 ``[B, S]``.
            attention_mask: ``[B, S]``, 0 at padding; None where there is none.
            token_type_ids: ``[B, S]``, 0 for the first text and 1 for the second; None compares a text with itself.
            inputs_embeds: words as vectors ``[B, S, E]`` in place of their numbers.
            labels: int64 ``[B]``, for the mean cross-entropy ``loss``.
            output_attentions: whether to give the two maps ``[B, 1, S, S]``; None for the configuration's value.

        Returns:
            ``logits`` ``[B, C]`` and what was asked for.

        Raises:
            ValueError: both kinds of words or neither, or a mask of another shape.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__}: expected input_ids or inputs_embeds, one of them")
        words: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        shape = words.shape[:2]
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(
                    f"{type(self).__name__}: expected {name} {list(shape)}, got {list(tensor.shape)}"
                )
        logits, maps = self.classify(words, Sides.of(words, attention_mask, token_type_ids))
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        return SequenceClassifierOutput(
            loss=None if labels is None else F.cross_entropy(logits, labels),
            logits=logits,
            attentions=cast(tuple[Tensor, ...], tuple(maps)) if attentions else None,
        )


def hidden_layers(inputs: int, size: int, dropout: float, layers: int = 2) -> nn.Sequential:
    """Maps with ReLU, dropout before each."""
    modules: list[nn.Module] = []
    for index in range(layers):
        modules += [nn.Dropout(dropout), nn.Linear(size if index else inputs, size), nn.ReLU()]
    return nn.Sequential(*modules)
