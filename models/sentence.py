"""The self-attentive sentence classifier (Lin et al. 2017) in the shape of transformers' networks, for Auto classes."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from probattn.checks import check_choice
from probattn.models.layers import (
    CHECKS,
    Attended,
    OwnAttention,
    OwnConfig,
    OwnPreTrainedModel,
    check_mask,
    deep_lstm,
    embed,
    read_padded,
)
from probattn.models.pairs import Sides
from probattn.options import Count, Dropout, Natural

__all__ = ["SelfAttentiveConfig", "SelfAttentiveForSequenceClassification", "SelfAttentiveModel"]

AttentionActivation = Literal["tanh", "relu"]
"""Function between the two maps of the scores: that of Lin et al. 2017, or that of Snell et al. 2021."""


class SelfAttentiveConfig(OwnConfig):
    """Sizes of the self-attentive classifier of sentences or of pairs of sentences.

    The defaults are those of Lin et al. (2017, section 4.1), which An et al. (2020, appendix B.1) keep. The additive
    classifier of Snell et al. (2021, section 2.4, appendix A.8) has ``hidden_size=256, attention_size=256,
    num_attention_heads=1, attention_activation="relu", classifier_size=0, classifier_dropout=0.0``.

    Args:
        vocab_size: number of words, >= 1.
        embedding_size: size of a word's embedding; 300 in An et al. (GloVe 840B).
        hidden_size: size u of the LSTM's states in each direction.
        num_hidden_layers: number of LSTM layers.
        attention_size: size d_a of a query and of a key.
        num_attention_heads: number r of attention heads.
        classifier_size: hidden units of the ReLU network before the logits; 0 for a single linear map.
        embedding_dropout: dropout rate of embeddings, in [0, 1).
        hidden_dropout: dropout rate between the layers of the LSTM, in [0, 1).
        classifier_dropout: dropout rate before and within the ReLU network, or before the linear map, in [0, 1).
        **kwargs: ``attention_activation``, between the two linear layers that compute scores, is "tanh" (default) or
            "relu". With ``uniform_attention=True`` all words have equal weight; the parameters of the scores then get
            gradients of 0. ``gate_size`` is the number of values with which each attention head compares two texts (Lin
            et al. 2017, appendix B); 0, the default, is for single texts. All others, such as ``num_labels``, are
            options of ``PretrainedConfig``; ``pad_token_id`` (default 0) has an embedding that stays 0.

    Raises:
        ValueError: a size below 1 (``classifier_size``, ``gate_size``: below 0), a dropout rate outside [0, 1), or an
            unknown ``attention_activation``.

    Example:
        >>> SelfAttentiveConfig(num_attention_heads=10).attention_size
        350
        >>> SelfAttentiveConfig(attention_activation="relu", classifier_size=0).uniform_attention
        False
    """

    model_type = "probattn_self_attentive"

    def __init__(
        self,
        *,
        vocab_size: Count = 20_000,
        embedding_size: Count = 300,
        hidden_size: Count = 300,
        num_hidden_layers: Count = 1,
        attention_size: Count = 350,
        num_attention_heads: Count = 30,
        classifier_size: Natural = 2000,
        embedding_dropout: Dropout = 0.0,
        hidden_dropout: Dropout = 0.0,
        classifier_dropout: Dropout = 0.5,
        **kwargs: Any,
    ) -> None:
        self._take(SelfAttentiveConfig.__init__, locals())
        self.attention_activation = kwargs.pop("attention_activation", "tanh")
        self.uniform_attention = kwargs.pop("uniform_attention", False)
        self.gate_size = kwargs.pop("gate_size", 0)
        CHECKS[bool](type(self).__name__, "uniform_attention", self.uniform_attention)
        CHECKS[Natural](type(self).__name__, "gate_size", self.gate_size)
        check_choice(
            type(self).__name__, "attention_activation", self.attention_activation, AttentionActivation
        )
        super().__init__(**kwargs)


class SelfAttentiveAttention(OwnAttention):
    """Additive heads as dot products, not scaled: query i is column i of V, a key tanh(W h) (Lin et al. 2017)."""

    def __init__(self, config: SelfAttentiveConfig) -> None:
        super().__init__(config)
        self.key = nn.Linear(2 * config.hidden_size, config.attention_size, bias=False)
        self.query = nn.Linear(config.attention_size, config.num_attention_heads, bias=False)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Attended:
        """M ``[B, r, 2u]`` and A ``[B, r, 1, S]`` (None if the implementation gives no weights) of H ``[B, S, 2u]``."""
        # A copy: code that keeps the arguments of attention must not hold the parameter itself.
        queries = self.query.weight.to(hidden.dtype)[None, :, None].repeat(len(hidden), 1, 1, 1)
        if self.config.uniform_attention:
            queries = queries * 0  # with a gradient, which is 0: repulsion and several processes ask for one
        activation = torch.relu if self.config.attention_activation == "relu" else torch.tanh
        keys = activation(self.key(hidden))[:, None]  # [B, 1, S, d_a]
        output, weights = self.dot_product(queries, keys, hidden[:, None], attention_mask)
        return output[:, 0], weights


class SelfAttentivePreTrainedModel(OwnPreTrainedModel):
    """Base of the networks."""

    config_class = SelfAttentiveConfig
    base_model_prefix = "sentence"


class SelfAttentiveModel(SelfAttentivePreTrainedModel, auto=[AutoModel]):
    r"""Encoder of the self-attentive classifier: embeddings, bidirectional LSTM, additive attention (Lin et al. 2017).

    .. math:: A = \mathrm{softmax}(V^\top \tanh(W H^\top)), \qquad M = A H

    with the LSTM's states H ``[S, 2u]`` of S words, W ``[d_a, 2u]`` and V ``[d_a, r]``; the r attention heads give the
    sentence matrix M ``[r, 2u]``. Padding may be on either side and does not affect the result.

    Args:
        config: sizes u, r and others.

    Example:
        >>> net = SelfAttentiveModel(SelfAttentiveConfig(vocab_size=9, hidden_size=4, num_attention_heads=3)).eval()
        >>> net(torch.ones(2, 5, dtype=torch.long)).pooler_output.shape
        torch.Size([2, 24])
    """

    def __init__(self, config: SelfAttentiveConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.dropout = nn.Dropout(config.embedding_dropout)
        layers, dropout = config.num_hidden_layers, config.hidden_dropout
        self.lstm = deep_lstm(config.embedding_size, config.hidden_size, layers, dropout)
        self.attention = SelfAttentiveAttention(config)
        sizes = config.num_attention_heads, 2 * config.hidden_size, config.gate_size
        self.gates = nn.ModuleList(Gate(*sizes) for _ in range(2)) if config.gate_size else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Returns the embedding of words."""
        return self.embed_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPooling:
        """Encodes sentences, or pairs of sentences if ``config.gate_size`` > 0.

        Args:
            input_ids: numbers of words, int64 ``[B, S]``, S >= 1.
            attention_mask: ``[B, S]``, 0 at padding; None without padding.
            inputs_embeds: embeddings ``[B, S, embedding_size]`` instead of ``input_ids``.
            output_attentions: whether to return A; None for the configuration's value.
            token_type_ids: for pairs, ``[B, S]``: 0 in the first and 1 in the second text; None compares a text with
                itself. No effect on single texts.

        Returns:
            ``last_hidden_state`` H ``[B, S, 2u]``, 0 at padding; ``pooler_output``, for single texts the flattened M,
                ``[B, r * 2u]``, for pairs the product of gated matrices, ``[B, r * gate_size]``; ``attentions``, A
                ``[B, r, 1, S]`` of each text, if requested.

        Raises:
            ValueError: both ``input_ids`` and ``inputs_embeds`` or neither, or a mask that is not ``[B, S]``.
        """
        embedded = embed(self, input_ids, inputs_embeds)
        check_mask(type(self).__name__, "an attention_mask", attention_mask, embedded.shape[:2])
        words = self.dropout(embedded)
        if self.gates is None:
            hidden, matrix, weights = self._read(words, attention_mask)
            maps = [weights]
        else:
            sides = Sides.of(words, attention_mask, token_type_ids)
            read = [self._read(words, side) for side in sides]
            hidden = torch.where(sides.first[..., None], read[0][0], read[1][0])
            gated = [gate(matrix) for gate, (_, matrix, _) in zip(self.gates, read, strict=True)]
            matrix, maps = gated[0] * gated[1], [weights for _, _, weights in read]
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        shown = cast(tuple[Tensor, ...], tuple(maps)) if output_attentions else None
        pooled = matrix.flatten(1)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled, attentions=shown)

    def _read(self, words: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """H ``[B, S, 2u]``, M ``[B, r, 2u]`` and A of the words that are real."""
        hidden = read_padded(self.lstm, words, real)[0]
        mask = create_bidirectional_mask(self.config, hidden[:, :1], real, hidden)
        return (hidden, *self.attention(hidden, mask))


class Gate(nn.Module):
    """A map of its own for each head, by which two texts are compared (Lin et al. 2017, appendix B)."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs).uniform_(-bound, bound))

    def forward(self, matrix: Tensor) -> Tensor:
        """``[B, r, g]`` of M ``[B, r, 2u]``."""
        return torch.einsum("bru,rug->brg", matrix, self.weight)


class SelfAttentiveForSequenceClassification(
    SelfAttentivePreTrainedModel, auto=[AutoModelForSequenceClassification]
):
    r"""Self-attentive classifier: :class:`SelfAttentiveModel` under one hidden ReLU layer (Lin et al. 2017).

    With ``classifier_size=0`` there is no hidden layer. If also ``num_attention_heads=1`` and
    ``attention_activation="relu"``, it is the classifier of Snell et al. (2021, Eq. 7, 8), where h are states of the
    LSTM, and U, b, v, Q parameters. For two classes the paper has a single logit, the difference of the two here.

    .. math:: p = \mathrm{softmax}\bigl(\textstyle\sum_l \alpha_l U h_l + b\bigr), \qquad
        \alpha = \mathrm{softmax}(a), \quad a_l = v^\top \mathrm{ReLU}(Q h_l)

    With ``gate_size`` > 0 it classifies pairs: the same encoder reads both texts, and attention head i compares row i
    of their sentence matrices by :math:`(M_{1,i} W_{1,i}) \odot (M_{2,i} W_{2,i})` (Lin et al. 2017, appendix B).

    Args:
        config: sizes, and the number C of classes, ``num_labels``.

    Attributes:
        sentence: the :class:`SelfAttentiveModel`.
        dense: the hidden layer; None if ``classifier_size`` is 0.
        classifier: the linear map to logits.

    Example:
        >>> config = SelfAttentiveConfig(vocab_size=9, hidden_size=4, num_attention_heads=3, num_labels=6)
        >>> net = SelfAttentiveForSequenceClassification(config).eval()
        >>> output = net(torch.ones(2, 5, dtype=torch.long), output_attentions=True)
        >>> output.logits.shape, output.attentions[0].shape
        (torch.Size([2, 6]), torch.Size([2, 3, 1, 5]))
        >>> additive = {"num_attention_heads": 1, "attention_activation": "relu", "classifier_size": 0}
        >>> SelfAttentiveForSequenceClassification(SelfAttentiveConfig(hidden_size=4, **additive)).classifier
        Linear(in_features=8, out_features=2, bias=True)
    """

    def __init__(self, config: SelfAttentiveConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.num_labels = config.num_labels
        self.sentence = SelfAttentiveModel(config)
        features = (config.gate_size or 2 * config.hidden_size) * config.num_attention_heads
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.dense = nn.Linear(features, config.classifier_size) if config.classifier_size else None
        self.classifier = nn.Linear(config.classifier_size or features, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Returns logits ``[B, C]`` of sentences or pairs and, with ``labels`` (int64 ``[B]``), the mean cross-entropy.

        The other arguments, and ``attentions`` in the output, are those of :class:`SelfAttentiveModel`.
        """
        read = self.sentence(input_ids, attention_mask, inputs_embeds, output_attentions, token_type_ids)
        hidden = self.dropout(read.pooler_output)
        if self.dense is not None:
            hidden = self.dropout(torch.relu(self.dense(hidden)))
        logits = self.classifier(hidden)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, attentions=read.attentions)
