"""The decomposable attention model in the shape of transformers' networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probattn.models.pairs.crossing import (
    CrossAttention,
    PairConfig,
    PairPreTrainedModel,
    Sides,
    hidden_layers,
)


class DecomposableConfig(PairConfig):
    """Sizes of the decomposable attention model; the defaults are those of Parikh et al. (2016, section 5).

    Example:
        >>> DecomposableConfig(vocab_size=9).hidden_size
        200
    """

    model_type = "probattn_decomposable"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class DecomposableForSequenceClassification(PairPreTrainedModel):
    r"""Attend, compare, aggregate: a classifier of pairs of texts without any order of words (Parikh et al. 2016).

    .. math:: e_{ij} = F(\bar a_i)^\top F(\bar b_j), \quad v_{1,i} = G([\bar a_i, \beta_i]), \quad
        v_{2,j} = G([\bar b_j, \alpha_j]), \quad y = H\bigl(\bigl[\textstyle\sum_i v_{1,i}, \sum_j v_{2,j}\bigr]\bigr)

    (section 3, Eq. 1 to 5, without intra-sentence attention). :math:`\bar a` are the words' vectors under a linear map;
    F, G and H have two layers with ReLU; H ends in a linear map.

    Args:
        config: sizes, and ``num_labels``.

    Attributes:
        embed_tokens: vectors of words.
        project: the linear map.
        transform: F.
        attention: the attention from each text to the other.
        compare: G.
        aggregate: H without its last map.
        classifier: the last map.

    Example:
        >>> net = DecomposableForSequenceClassification(DecomposableConfig(vocab_size=9, num_labels=3)).eval()
        >>> sides = torch.tensor([[0, 0, 1, 1, 1]])
        >>> output = net(torch.ones(1, 5, dtype=torch.long), token_type_ids=sides, output_attentions=True)
        >>> output.logits.shape, [tuple(each.shape) for each in output.attentions]
        (torch.Size([1, 3]), [(1, 1, 5, 5), (1, 1, 5, 5)])
    """

    config_class = DecomposableConfig

    def __init__(self, config: DecomposableConfig) -> None:
        super().__init__(config)
        size, dropout = config.hidden_size, config.dropout
        self.project = nn.Linear(config.embedding_size, size, bias=False)
        self.transform = hidden_layers(size, size, dropout)
        self.attention = CrossAttention(config)
        self.compare = hidden_layers(2 * size, size, dropout)
        self.aggregate = hidden_layers(2 * size, size, dropout)
        self.classifier = nn.Linear(size, self.num_labels)
        self.post_init()

    def classify(self, words: Tensor, sides: Sides) -> tuple[Tensor, list[Tensor | None]]:
        """Logits ``[B, C]`` and the two maps of words ``[B, S, E]``."""
        hidden = self.project(words)
        attended, maps = self.attention(self.transform(hidden), hidden, sides)
        compared = self.compare(torch.cat([hidden, attended], dim=-1))  # [B, S, u]
        sums = [(compared * side[..., None]).sum(dim=1) for side in sides]
        return self.classifier(self.aggregate(torch.cat(sums, dim=-1))), maps
