"""The enhanced sequential inference model in the shape of transformers' networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probattn.models.lstm import read_padded
from probattn.models.pairs.crossing import CrossAttention, PairConfig, PairPreTrainedModel, Sides


class EsimConfig(PairConfig):
    """Sizes of the enhanced sequential inference model; the defaults are those of Chen et al. (2017, section 4).

    Example:
        >>> EsimConfig(vocab_size=9).dropout
        0.5
    """

    model_type = "probattn_esim"

    def __init__(self, *, hidden_size: int = 300, dropout: float = 0.5, **kwargs: Any) -> None:
        super().__init__(hidden_size=hidden_size, dropout=dropout, **kwargs)


class EsimForSequenceClassification(PairPreTrainedModel):
    r"""A classifier of pairs of texts whose words are read by an LSTM before and after they attend (Chen et al. 2017).

    .. math:: \bar a = \mathrm{BiLSTM}(a), \quad e_{ij} = \bar a_i^\top \bar b_j, \quad
        m_a = [\bar a; \tilde a; \bar a - \tilde a; \bar a \odot \tilde a], \quad
        v_a = \mathrm{BiLSTM}(\mathrm{ReLU}(W m_a)), \quad
        y = \mathrm{MLP}([v_{a,\mathrm{ave}}; v_{a,\max}; v_{b,\mathrm{ave}}; v_{b,\max}])

    (Eq. 1 and 2, 11 to 20, the sequential model). The perceptron has a hidden layer with tanh.

    Args:
        config: sizes, and ``num_labels``.

    Attributes:
        embed_tokens: vectors of words.
        encode: the LSTM that reads words.
        attention: the attention from each text to the other.
        project: W.
        compose: the LSTM that reads what attention has found.
        dense: the hidden layer.
        classifier: the last map.

    Example:
        >>> net = EsimForSequenceClassification(EsimConfig(vocab_size=9, hidden_size=4, num_labels=3)).eval()
        >>> sides = torch.tensor([[0, 0, 1, 1, 1]])
        >>> net(torch.ones(1, 5, dtype=torch.long), token_type_ids=sides).logits.shape
        torch.Size([1, 3])
    """

    config_class = EsimConfig

    def __init__(self, config: EsimConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.dropout = nn.Dropout(config.dropout)
        self.encode = nn.LSTM(config.embedding_size, size, batch_first=True, bidirectional=True)
        self.attention = CrossAttention(config)
        self.project = nn.Linear(8 * size, size)
        self.compose = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.dense = nn.Linear(8 * size, size)
        self.classifier = nn.Linear(size, self.num_labels)
        self.post_init()

    def classify(self, words: Tensor, sides: Sides) -> tuple[Tensor, list[Tensor | None]]:
        """Logits ``[B, C]`` and the two maps of words ``[B, S, E]``."""
        read = _each(self.encode, self.dropout(words), sides)
        attended, maps = self.attention(read, read, sides)
        enhanced = torch.cat([read, attended, read - attended, read * attended], dim=-1)  # [B, S, 8u]
        inferred = _each(self.compose, self.dropout(torch.relu(self.project(enhanced))), sides)
        pooled = [vector for side in sides for vector in _pooled(inferred, side)]
        hidden = torch.tanh(self.dense(self.dropout(torch.cat(pooled, dim=-1))))
        return self.classifier(self.dropout(hidden)), maps


def _each(lstm: nn.LSTM, words: Tensor, sides: Sides) -> Tensor:
    """States ``[B, S, 2u]`` of an LSTM over each text by itself, 0 at padding."""
    first, second = (read_padded(lstm, words, side)[0] for side in sides)
    return torch.where(sides.first[..., None], first, second)


def _pooled(states: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and maximum ``[B, 2u]`` over the words of a text."""
    real = side[..., None]
    mean = (states * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)
    largest = states.masked_fill(~real, torch.finfo(states.dtype).min).amax(dim=1)
    return mean, largest
