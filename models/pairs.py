"""Networks of two texts: decomposable attention (Parikh et al. 2016) and ESIM (Chen et al. 2017), for Auto classes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, PretrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from probattn.models.layers import (
    Attended,
    OwnAttention,
    OwnConfig,
    OwnPreTrainedModel,
    additive_mask,
    check_mask,
    embed,
    read_padded,
    valid_positions,
)
from probattn.options import Count, Dropout

__all__ = ["DecomposableConfig", "DecomposableForSequenceClassification", "EsimConfig"]
__all__ += ["EsimForSequenceClassification"]


class PairConfig(OwnConfig):
    """Sizes that networks of two texts share; ``freeze_embeddings`` keeps the words' first vectors."""

    def __init__(
        self,
        *,
        vocab_size: Count = 20_000,
        embedding_size: Count = 300,
        hidden_size: Count = 200,
        dropout: Dropout = 0.2,
        freeze_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        self._take(PairConfig.__init__, locals())
        super().__init__(**kwargs)


class Sides(NamedTuple):
    """The words of each of two texts that stand in one row, bool ``[B, S]``."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, words: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Sides:
        """Those of words ``[B, S, E]``, by mask and types ``[B, S]``; without types both texts are the whole row."""
        real = valid_positions(attention_mask, words)
        if token_type_ids is None:
            return cls(real, real)
        return cls(real & (token_type_ids == 0), real & (token_type_ids == 1))


class OneWayAttention(OwnAttention):
    """Some words of a row attend to others of it, by one head."""

    def forward(self, compared: Tensor, hidden: Tensor, queries: Tensor, keys: Tensor) -> Attended:
        """What ``queries`` find among ``keys``, bool ``[B, S]`` both: ``[B, S, E]``, and the map ``[B, 1, S, S]``."""
        mask = additive_mask(queries[:, None, :, None] & keys[:, None, None, :], hidden.dtype)
        compared = compared[:, None]
        output, weights = self.dot_product(compared, compared, hidden[:, None], mask, query_mask=queries)
        return output[:, :, 0], None if weights is None else weights * queries[:, None, :, None]


class CrossAttention(nn.Module):
    """Each text's words attend to the other's (Parikh et al. 2016, Eq. 1, 2; Chen et al. 2017, Eq. 11 to 13)."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        # Two calls over all words of the row; with no pair in common each is a stack of its own.
        self.first, self.second = (nn.ModuleDict({"attention": OneWayAttention(config)}) for _ in range(2))

    def forward(self, compared: Tensor, hidden: Tensor, sides: Sides) -> tuple[Tensor, list[Tensor | None]]:
        """What each word finds in the other text, ``[B, S, E]``, by ``compared``, and two maps ``[B, 1, S, S]``."""
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
        """Logits ``[B, C]`` and attention weights in both directions for embeddings ``[B, S, E]``."""

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
        """Returns logits ``[B, C]`` of pairs of texts and, with ``labels`` (int64 ``[B]``), the mean cross-entropy."""
        words = embed(self, input_ids, inputs_embeds)
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            check_mask(type(self).__name__, name, tensor, words.shape[:2])
        logits, maps = self.classify(words, Sides.of(words, attention_mask, token_type_ids))
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        loss = None if labels is None else F.cross_entropy(logits, labels)
        shown = cast(tuple[Tensor, ...], tuple(maps)) if attentions else None
        return SequenceClassifierOutput(loss=loss, logits=logits, attentions=shown)


def hidden_layers(inputs: int, size: int, dropout: float, layers: int = 2) -> nn.Sequential:
    """Maps with ReLU, dropout before each."""
    modules: list[nn.Module] = []
    for index in range(layers):
        modules += [nn.Dropout(dropout), nn.Linear(size if index else inputs, size), nn.ReLU()]
    return nn.Sequential(*modules)


class DecomposableConfig(PairConfig):
    """Sizes of the decomposable attention model; the defaults are those of Parikh et al. (2016, section 5).

    Keyword arguments are ``vocab_size`` (20,000 words), ``embedding_size`` (300), ``hidden_size`` (u, 200), ``dropout``
    (0.2), ``freeze_embeddings`` (False: embeddings are trained) and options of ``PretrainedConfig``.

    Example:
        >>> DecomposableConfig(vocab_size=9).hidden_size
        200
    """

    model_type = "probattn_decomposable"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class DecomposableForSequenceClassification(PairPreTrainedModel, auto=[AutoModelForSequenceClassification]):
    r"""Classifier of pairs of texts by attention between them; it ignores word order (Parikh et al. 2016).

    .. math:: e_{ij} = F(\bar a_i)^\top F(\bar b_j), \quad v_{1,i} = G([\bar a_i, \beta_i]), \quad
        v_{2,j} = G([\bar b_j, \alpha_j]), \quad y = H\bigl(\bigl[\textstyle\sum_i v_{1,i}, \sum_j v_{2,j}\bigr]\bigr)

    (section 3, Eq. 1 to 5, without intra-sentence attention). :math:`\bar a_i, \bar b_j` are linear maps of the word
    embeddings of the two texts; :math:`\beta_i` is the mean of :math:`\bar b_j` with weights softmax(e) over j, and
    :math:`\alpha_j` that of :math:`\bar a_i` over i. F, G and H have two ReLU layers; H ends in a linear map. A row of
    ``input_ids`` ``[B, S]`` has both texts; ``token_type_ids`` ``[B, S]`` is 0 in the first and 1 in the second (None
    compares a text with itself). ``attentions`` are the weights of both directions, ``[B, 1, S, S]`` each.

    Args:
        config: sizes, and the number of classes, ``num_labels``.

    Attributes:
        embed_tokens: embedding of words.
        project: the linear map of the embeddings.
        transform: F.
        attention: the attention from each text to the other.
        compare: G.
        aggregate: H without its last linear map.
        classifier: the last linear map of H.

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
        """Returns logits ``[B, C]`` and attention weights in both directions for embeddings ``[B, S, E]``."""
        hidden = self.project(words)
        attended, maps = self.attention(self.transform(hidden), hidden, sides)
        compared = self.compare(torch.cat([hidden, attended], dim=-1))  # [B, S, u]
        sums = [(compared * side[..., None]).sum(dim=1) for side in sides]
        return self.classifier(self.aggregate(torch.cat(sums, dim=-1))), maps


class EsimConfig(PairConfig):
    """Sizes of the enhanced sequential inference model; the defaults are those of Chen et al. (2017, section 4).

    ``hidden_size`` is the size u of the LSTMs' states in each direction; further keyword arguments are those of
    :class:`DecomposableConfig`.

    Example:
        >>> EsimConfig(vocab_size=9).dropout
        0.5
    """

    model_type = "probattn_esim"

    def __init__(self, *, hidden_size: int = 300, dropout: float = 0.5, **kwargs: Any) -> None:
        super().__init__(hidden_size=hidden_size, dropout=dropout, **kwargs)


class EsimForSequenceClassification(PairPreTrainedModel, auto=[AutoModelForSequenceClassification]):
    r"""Classifier of pairs of texts with LSTMs before and after the attention between them (Chen et al. 2017).

    .. math:: \bar a = \mathrm{BiLSTM}(a), \quad e_{ij} = \bar a_i^\top \bar b_j, \quad
        m_a = [\bar a; \tilde a; \bar a - \tilde a; \bar a \odot \tilde a], \quad
        v_a = \mathrm{BiLSTM}(\mathrm{ReLU}(W m_a)), \quad
        y = \mathrm{MLP}([v_{a,\mathrm{ave}}; v_{a,\max}; v_{b,\mathrm{ave}}; v_{b,\max}])

    for embeddings a and b of the two texts; :math:`v_b` is computed like :math:`v_a` (Eq. 1, 2, 11 to 20, sequential).
    :math:`\tilde a_i` is the mean of :math:`\bar b_j` with weights softmax(e) over j; "ave" and "max" pool over words.
    The multilayer perceptron (MLP) has one hidden layer with tanh. Inputs and outputs are those of
    :class:`DecomposableForSequenceClassification`.

    Args:
        config: sizes, and the number of classes, ``num_labels``.

    Attributes:
        embed_tokens: embedding of words.
        encode: the LSTM before attention.
        attention: the attention from each text to the other.
        project: W.
        compose: the LSTM after attention.
        dense: the hidden layer of the MLP.
        classifier: the last linear map of the MLP.

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
        """Returns logits ``[B, C]`` and attention weights in both directions for embeddings ``[B, S, E]``."""
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
