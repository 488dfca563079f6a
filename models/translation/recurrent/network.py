"""The LSTM encoder-decoder in the shape of transformers' networks."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSeq2SeqLM, GenerationMixin
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils.generic import ModelOutput

from probattn.models.heads.sequences import Translator
from probattn.models.hosts.cache import CACHE, cache_in, cached_output
from probattn.models.layers import OwnEncoderDecoder, check_mask
from probattn.models.program import Program
from probattn.models.translation.recurrent.lstms import (
    DecoderState,
    DotAttention,
    OutputNetwork,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentEncoderOutput,
    RecurrentTranslationConfig,
    mixture_log_probs,
)


@cached_output
class RecurrentModelOutput(ModelOutput):
    """s ``[B, T, E]``, c ``[B, T, D]``, h ``[B, S, D]``; if requested weights ``[B, K, T, S]`` and decoder's state."""

    last_hidden_state: Tensor | None = None
    contexts: Tensor | None = None
    encoder_last_hidden_state: Tensor | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    cache: DecoderState | None = None


@cached_output
class RecurrentTranslationOutput(ModelOutput):
    """Mean cross-entropy, logits ``[B, T, V]``, and what of :class:`RecurrentModelOutput` they were made of."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: DecoderState | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    decoder_last_hidden_state: Tensor | None = None
    contexts: Tensor | None = None


class RecurrentModel(OwnEncoderDecoder, auto=[AutoModel]):
    """LSTM encoder, LSTM decoder and attention: :class:`RecurrentForTranslation` without its output network.

    Args:
        config: sizes.

    Example:
        >>> import torch
        >>> config = RecurrentTranslationConfig(vocab_size=9, hidden_size=4, decoder_hidden_size=6)
        >>> output = RecurrentModel(config)(torch.ones(2, 5).long(), decoder_input_ids=torch.ones(2, 3).long())
        >>> output.contexts.shape, output.last_hidden_state.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 3, 6]))
    """

    config_class = RecurrentTranslationConfig

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.attention = DotAttention(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> RecurrentModelOutput:
        """Runs both LSTMs and the attention.

        Args:
            input_ids: source tokens, int64 ``[B, S]``.
            attention_mask: ``[B, S]``, 0 at padding of the source; None without padding.
            decoder_input_ids: target tokens shifted by one, int64 ``[B, T]``.
            decoder_attention_mask: ``[B, T]``, 0 at padding of the target; None without padding.
            inputs_embeds: embeddings of the source ``[B, S, embedding_size]`` instead of ``input_ids``.
            encoder_outputs: outputs of the encoder instead of a source.
            use_cache: whether to return the decoder's last state.
            output_attentions: whether to return attention weights; None for the configuration's value.
            **options: ``cache`` or ``past_key_values``: decoder state from which ``decoder_input_ids`` continue.

        Returns:
            Decoder states ``last_hidden_state`` ``[B, T, E]``, ``contexts`` ``[B, T, D]``, encoder states
                ``encoder_last_hidden_state`` ``[B, S, D]``; if requested weights ``[B, K, T, S]`` and decoder state.

        Raises:
            ValueError: no target, no source, both ``input_ids`` and ``inputs_embeds``, or a mask of another shape.
        """
        inputs = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask)
        others: dict[str, Any] = {"inputs_embeds": inputs_embeds, "encoder_outputs": encoder_outputs}
        hidden, states, past = self.read(*inputs, **others, cache=cache_in(options))
        mask = create_bidirectional_mask(self.config, hidden[:, :1], attention_mask, hidden)
        real = None if decoder_attention_mask is None else decoder_attention_mask.bool()
        contexts, weights = self.attention(states, hidden, mask, real)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        maps = (weights,) if output_attentions and weights is not None else None
        state = past if use_cache else None
        return RecurrentModelOutput(states, contexts, hidden, cross_attentions=maps, **{CACHE: state})

    def read(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | None = None,
        cache: DecoderState | None = None,
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Runs the LSTMs without attention; ``cache`` is a decoder state, other arguments are those of :meth:`forward`.

        Returns:
            Encoder states h ``[B, S, D]``, decoder states s ``[B, T, E]`` and the decoder's last state.
        """
        if decoder_input_ids is None:
            raise ValueError(f"{type(self).__name__}: expected decoder_input_ids, the target shifted by one")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds)
        hidden = encoder_outputs.last_hidden_state
        assert hidden is not None
        owner, shape = type(self).__name__, decoder_input_ids.shape
        check_mask(owner, "attention_mask", attention_mask, hidden.shape[:2])
        check_mask(owner, "decoder_attention_mask", decoder_attention_mask, shape)
        embedded = self.encoder.embed_tokens(decoder_input_ids)
        states, past = self.decoder(embedded, decoder_attention_mask, encoder_outputs, cache)
        return hidden, states, past


class RecurrentForTranslation(OwnEncoderDecoder, GenerationMixin, auto=[AutoModelForSeq2SeqLM]):
    r"""An LSTM encoder-decoder with dot attention (Luong et al. 2015; Snell et al. 2021, section 2.1 and Eq. 20, 21).

    .. math::

        \alpha_{t,l}^k = \mathrm{softmax}_l(s_t^\top W^k h_l), \quad c_t = \sum_k \sum_l \alpha_{t,l}^k h_l, \quad
        p_t = \mathrm{softmax}(N([c_t, s_t]))

    with encoder states h ``[B, S, D]``, decoder states s ``[B, T, E]``, K attention heads and the output network N. The
    decoder's LSTM reads the previous tokens but no contexts (no input feeding), so one call of LSTM and attention
    computes a whole target. In beam search the decoder's state is cached.

    Args:
        config: sizes.

    Attributes:
        model: encoder, decoder and attention.
        output: N, from contexts ``[..., D]`` and states ``[..., E]`` to logits ``[..., V]``, in the form that
            :func:`probattn.probes.lexical_probe` takes.

    Example:
        >>> import torch
        >>> from probattn.probes import lexical_probe
        >>> config = RecurrentTranslationConfig(vocab_size=9, hidden_size=4, decoder_hidden_size=6)
        >>> net = RecurrentForTranslation(config).eval()
        >>> source, target = torch.tensor([[4, 5, 6, 3]]), torch.tensor([[7, 3]])
        >>> found = net(source, labels=target, output_attentions=True)
        >>> found.logits.shape, found.cross_attentions[0].shape
        (torch.Size([1, 2, 9]), torch.Size([1, 1, 2, 4]))
        >>> states, queries = found.encoder_last_hidden_state, found.decoder_last_hidden_state
        >>> lexical_probe(net.output, states, queries, target).shape
        torch.Size([1, 2, 4])
    """

    config_class = RecurrentTranslationConfig
    program_class: ClassVar[type[Program]] = Translator

    def __init__(self, config: RecurrentTranslationConfig) -> None:
        super().__init__(config)
        self.model = RecurrentModel(config)
        self.output = OutputNetwork(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> RecurrentTranslationOutput:
        """Predicts each token of the target from the source and the previous tokens.

        Arguments are those of :class:`RecurrentModel` and ``labels``: target tokens, int64 ``[B, T]``, -100 at padding.
        Labels shifted by one replace missing ``decoder_input_ids``.

        Returns:
            ``logits`` ``[B, T, V]`` (log-probabilities if ``latent_alignment`` is "mixture"), the outputs of
                :class:`RecurrentModel` and, with labels, the mean cross-entropy per token ``loss``.

        Raises:
            ValueError: neither decoder inputs nor labels, or an error of :class:`RecurrentModel`.
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        read = self.model(input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, **options)
        if self.config.latent_alignment == "mixture":
            states, hidden = read.last_hidden_state, read.encoder_last_hidden_state
            weights = self.model.attention.log_weights(states, hidden, attention_mask)[:, 0]  # [B, T, S]
            logits = mixture_log_probs(self.output, hidden, states, weights)
        else:
            logits = self.output(read.contexts, read.last_hidden_state)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        outputs = dict(read)
        states = outputs.pop("last_hidden_state")
        return RecurrentTranslationOutput(loss, logits, decoder_last_hidden_state=states, **outputs)
