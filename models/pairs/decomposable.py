"""The decomposable attention model in the shape of transformers' networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from probattn.models.pairs.crossing import CrossAttention, PairConfig, PairPreTrainedModel, hidden_layers


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
        words, sides = self.embedded(input_ids, attention_mask, token_type_ids, inputs_embeds)
        hidden = self.project(words)
        found, maps = self.attention(self.transform(hidden), hidden, sides)
        compared = self.compare(torch.cat([hidden, found], dim=-1))  # [B, S, u]
        sums = [(compared * side[..., None]).sum(dim=1) for side in sides]
        logits = self.classifier(self.aggregate(torch.cat(sums, dim=-1)))
        return self.output(logits, labels, maps, output_attentions)
