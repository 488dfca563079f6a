"""Sizes of the LSTM encoder-decoder."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from probattn.models.translation.network import BEGIN, END, PAD


class RecurrentTranslationConfig(PretrainedConfig):
    """Sizes of an LSTM encoder-decoder with dot attention.

    The defaults are those of Snell et al. (2021, appendix A.8): a bidirectional encoder of two layers, 256 everywhere.
    Their copying tasks have ``bidirectional=False, num_hidden_layers=1``.

    Args:
        vocab_size: V, tokens of source and target together, special ones included.
        embedding_size: of a token, the same vectors for source and target.
        hidden_size: u, of the encoder in each direction.
        num_hidden_layers: layers of the encoder, and of the decoder.
        bidirectional: whether the encoder reads from both ends.
        decoder_hidden_size: size of the decoder's states; None for that of the encoder's, 2u or u. With another size a
            linear map takes the encoder's last state to the decoder's first.
        num_attention_heads: K, whose contexts are summed.
        output_size: hidden units of the output network N; 0 for a single linear map.
        dropout: share of the embeddings, of what N is given and of its hidden units that is dropped in training, in
            [0, 1).
        hidden_dropout: the same between the layers of the LSTMs.
        **kwargs: ``uniform_attention=True`` has every token attended to equally, without scores, none of which gets
            a gradient. ``latent_alignment`` says that a network of one head was trained by
            :class:`probattn.models.VariationalTranslator`, and how it answers: ``"mixture"``, with the probability of
            a token over all alignments, or ``"soft"``, from the mean context as any other. The rest is for
            ``PretrainedConfig``. Padding, begin and end are tokens 0, 2 and 3 by default, and the
            decoder starts with "begin".

    Raises:
        ValueError: a size below 1 (``output_size``: 0), a dropout outside [0, 1), or another choice than these.

    Example:
        >>> config = RecurrentTranslationConfig(hidden_size=128)
        >>> config.state_size, config.decoder_state_size
        (256, 256)
    """

    model_type = "probattn_recurrent_translation"

    def __init__(
        self,
        *,
        vocab_size: int = 8000,
        embedding_size: int = 256,
        hidden_size: int = 256,
        num_hidden_layers: int = 2,
        bidirectional: bool = True,
        decoder_hidden_size: int | None = 256,
        num_attention_heads: int = 1,
        output_size: int = 256,
        dropout: float = 0.0,
        hidden_dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.bidirectional = bidirectional
        self.decoder_hidden_size = decoder_hidden_size
        self.num_attention_heads = num_attention_heads
        self.output_size = output_size
        self.dropout = dropout
        self.hidden_dropout = hidden_dropout
        self.uniform_attention = kwargs.pop("uniform_attention", False)
        self.latent_alignment = kwargs.pop("latent_alignment", None)
        self._check_sizes()
        special = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
        defaults = {"decoder_start_token_id": kwargs.get("bos_token_id", BEGIN), "is_encoder_decoder": True}
        super().__init__(**special | defaults | kwargs)

    @property
    def state_size(self) -> int:
        """D, size of the encoder's states: both directions side by side."""
        return self.hidden_size * (2 if self.bidirectional else 1)

    @property
    def decoder_state_size(self) -> int:
        """E, size of the decoder's states."""
        return self.state_size if self.decoder_hidden_size is None else self.decoder_hidden_size

    @property
    def layer_dropout(self) -> float:
        """Dropout between the LSTM's layers: 0 for a single layer, as torch requires."""
        return self.hidden_dropout if self.num_hidden_layers > 1 else 0.0

    def _check_sizes(self) -> None:
        minima = {
            "vocab_size": 1,
            "embedding_size": 1,
            "hidden_size": 1,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "output_size": 0,
        }
        if self.decoder_hidden_size is not None:
            minima["decoder_hidden_size"] = 1
        for name, low in minima.items():
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < low:
                raise ValueError(
                    f"RecurrentTranslationConfig.{name}: expected an integer >= {low}, got {size!r}"
                )
        for name in ("dropout", "hidden_dropout"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
                raise ValueError(
                    f"RecurrentTranslationConfig.{name}: expected a number in [0, 1), got {share!r}"
                )
        self._check_choices()

    def _check_choices(self) -> None:
        if self.latent_alignment not in (None, "mixture", "soft"):
            raise ValueError(
                "RecurrentTranslationConfig.latent_alignment: expected 'mixture', 'soft' or None, got "
                f"{self.latent_alignment!r}"
            )
        if self.latent_alignment is not None and self.num_attention_heads > 1:
            raise ValueError(
                "RecurrentTranslationConfig.latent_alignment: expected one attention head, since a token has one "
                f"alignment, got {self.num_attention_heads}"
            )
        for name in ("bidirectional", "uniform_attention"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"RecurrentTranslationConfig.{name}: expected true or false, got {getattr(self, name)!r}"
                )
