"""Sizes of the self-attentive sentence classifier."""

from __future__ import annotations

from typing import Any, Literal, get_args

from transformers import PretrainedConfig

AttentionActivation = Literal["tanh", "relu"]
"""Function between the two maps of the scores: that of Lin et al. 2017, or that of Snell et al. 2021."""


class SelfAttentiveConfig(PretrainedConfig):
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
        vocab_size: int = 20_000,
        embedding_size: int = 300,
        hidden_size: int = 300,
        num_hidden_layers: int = 1,
        attention_size: int = 350,
        num_attention_heads: int = 30,
        classifier_size: int = 2000,
        embedding_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        classifier_dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.attention_size = attention_size
        self.num_attention_heads = num_attention_heads
        self.classifier_size = classifier_size
        self.embedding_dropout = embedding_dropout
        self.hidden_dropout = hidden_dropout
        self.classifier_dropout = classifier_dropout
        self.attention_activation = kwargs.pop("attention_activation", "tanh")
        self.uniform_attention = kwargs.pop("uniform_attention", False)
        self.gate_size = kwargs.pop("gate_size", 0)
        self._check_sizes()
        self._check_choices()
        super().__init__(**{"pad_token_id": 0} | kwargs)

    def _check_sizes(self) -> None:
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "attention_size")
        for name in (*sizes, "num_attention_heads", "classifier_size", "gate_size"):
            size, minimum = getattr(self, name), 0 if name in ("classifier_size", "gate_size") else 1
            if isinstance(size, bool) or not isinstance(size, int) or size < minimum:
                raise ValueError(
                    f"SelfAttentiveConfig.{name}: expected an integer >= {minimum}, got {size!r}"
                )
        for name in ("embedding_dropout", "hidden_dropout", "classifier_dropout"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
                raise ValueError(f"SelfAttentiveConfig.{name}: expected a number in [0, 1), got {share!r}")

    def _check_choices(self) -> None:
        choices = get_args(AttentionActivation)
        if self.attention_activation not in choices:
            raise ValueError(
                f"SelfAttentiveConfig.attention_activation: expected {' or '.join(map(repr, choices))}, got "
                f"{self.attention_activation!r}"
            )
        if not isinstance(self.uniform_attention, bool):
            raise ValueError(
                f"SelfAttentiveConfig.uniform_attention: expected true or false, got {self.uniform_attention!r}"
            )
