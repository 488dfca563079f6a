"""The self-attentive sentence classifier (Lin et al. 2017) in the shape of transformers' networks, for Auto classes."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

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
    """Sizes of the self-attentive sentence classifier.

    The defaults are those of Lin et al. (2017, section 4.1), which An et al. (2020, appendix B.1) keep. The additive
    classifier of Snell et al. (2021, section 2.4, appendix A.8) has ``hidden_size=256, attention_size=256,
    num_attention_heads=1, attention_activation="relu", classifier_size=0, classifier_dropout=0.0``.

    Args:
        vocab_size: number of words, >= 1.
        embedding_size: of a word; 300 in An et al. (GloVe 840B).
        hidden_size: u, of the LSTM in each direction.
        num_hidden_layers: layers of the LSTM.
        attention_size: d_a, rows of W and size of a key.
        num_attention_heads: r, heads of the attention.
        classifier_size: hidden units of the ReLU network on top; 0 for a single linear map.
        embedding_dropout: share of a word's numbers that is dropped in training, in [0, 1).
        hidden_dropout: the same between the LSTM's layers.
        classifier_dropout: the same before and within the ReLU network, or before the linear map.
        **kwargs: ``attention_activation`` is ``"tanh"``, the default, or ``"relu"``. ``uniform_attention=True`` has
            every word attended to equally, without scores, whose parameters get gradients of 0. ``gate_size`` is the
            number of values by which each head compares two texts (Lin et al. 2017, appendix B); 0, the default, is
            for single texts. The rest is for ``PretrainedConfig``, such as ``num_labels``; ``pad_token_id``, 0 if left
            out, is that of the padding word, whose embedding is 0 and learns nothing.

    Raises:
        ValueError: a size below 1 (``classifier_size``, ``gate_size``: 0), a dropout outside [0, 1), or another choice
            than these.

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
        choices = get_args(AttentionActivation)
        if self.attention_activation not in choices:
            raise ValueError(
                f"SelfAttentiveConfig.attention_activation: expected {' or '.join(map(repr, choices))}, got "
                f"{self.attention_activation!r}"
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
    """Words to a sentence matrix: embeddings, a bidirectional LSTM, and r heads of additive attention.

    Padding, on whichever side, takes no part: the LSTM reads each sentence's own words alone.

    Args:
        config: sizes.

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
        """The vectors of words."""
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
        """Reads sentences, or pairs of them where there are gates.

        Args:
            input_ids: numbers of words, int64 ``[B, S]``, S >= 1.
            attention_mask: ``[B, S]``, 0 at padding; None where there is none.
            inputs_embeds: words as vectors ``[B, S, E]`` in place of their numbers.
            output_attentions: whether to give the weights; None for the configuration's value.
            token_type_ids: ``[B, S]``, 0 for the first text of a pair and 1 for the second, where there are gates; None
                compares a text with itself. Without gates it is of no effect.

        Returns:
            ``last_hidden_state`` H ``[B, S, 2u]``, 0 at padding; ``pooler_output``, the rows of M one after the other,
            ``[B, r * 2u]``, or what the gates make of those of two texts, ``[B, r * g]``; ``attentions``, A ``[B, r, 1,
            S]`` of each text, if requested.

        Raises:
            ValueError: both kinds of words or neither, or a mask that is not ``[B, S]``.
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
    r"""The sentence matrix under a ReLU network with one hidden layer: class logits (Lin et al. 2017).

    With ``classifier_size=0`` a linear map takes its place. With one head and ``attention_activation="relu"`` too
    it is the classifier of Snell et al. (2021, Eq. 7, 8; for two classes they give one logit, the difference of ours):

    .. math:: p = \mathrm{softmax}\bigl(\textstyle\sum_l \alpha_l U h_l + b\bigr), \qquad
        \alpha = \mathrm{softmax}(a), \quad a_l = v^\top \mathrm{ReLU}(Q h_l)

    With ``gate_size`` it classifies pairs: both texts are read by the same LSTM and heads, and head i compares its rows
    of their matrices by :math:`(M_{1,i} W_{1,i}) \odot (M_{2,i} W_{2,i})` (Lin et al. 2017, appendix B).

    Args:
        config: sizes, and ``num_labels``.

    Attributes:
        sentence: the LSTM and its attention.
        dense: the hidden layer; None where a linear map does.
        classifier: the last map.

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
        """Classifies sentences, or pairs; other arguments are those of :class:`SelfAttentiveModel`.

        With ``labels``, int64 ``[B]``, the output has the mean cross-entropy ``loss``. ``logits`` are ``[B, C]``.
        """
        read = self.sentence(input_ids, attention_mask, inputs_embeds, output_attentions, token_type_ids)
        hidden = self.dropout(read.pooler_output)
        if self.dense is not None:
            hidden = self.dropout(torch.relu(self.dense(hidden)))
        logits = self.classifier(hidden)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, attentions=read.attentions)
