"""Bases of configurations and networks that are built from nothing, and an LSTM over padded sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from probattn.checks import check_integer, check_share

State = tuple[Tensor, Tensor]
"""Hidden and cell state of every layer and direction, ``[layers * directions, B, u]`` each."""

SHUT = 1e4
"""Offset that holds a gate open or shut: its sigmoid is 1 or 0 in every type."""


PAD, UNKNOWN, BEGIN, END = range(4)
"""Numbers of the special tokens, which :class:`probattn.data.Subwords` gives them too."""


class OwnConfig(PretrainedConfig):
    """Base of configurations of our own: padding is token 0 by default, and attributes are checked by name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pad_token_id": PAD} | kwargs)

    def _check(
        self,
        counts: Iterable[str],
        shares: Iterable[str],
        naturals: Iterable[str] = (),
        flags: Iterable[str] = (),
    ) -> None:
        """``ValueError`` unless these are integers >= 1, numbers in [0, 1), integers >= 0, and truth values."""
        owner = type(self).__name__
        for minimum, names in ((1, counts), (0, naturals)):
            for name in names:
                check_integer(owner, name, getattr(self, name), minimum=minimum)
        for name in shares:
            check_share(owner, name, getattr(self, name), one=False)
        for name in flags:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{owner}.{name}: expected true or false, got {getattr(self, name)!r}")


class OwnEncoderDecoderConfig(OwnConfig):
    """Base of configurations of encoder-decoders, whose decoder starts with "begin"."""

    def __init__(self, **kwargs: Any) -> None:
        special = {"bos_token_id": BEGIN, "eos_token_id": END, "is_encoder_decoder": True}
        super().__init__(**special | {"decoder_start_token_id": kwargs.get("bos_token_id", BEGIN)} | kwargs)


class OwnPreTrainedModel(PreTrainedModel):
    """Base of networks of our own, in the shape of transformers' networks."""

    main_input_name = "input_ids"
    # A weight map is what this network is read for, and fused kernels give none.
    _supports_sdpa = False
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = True

    def __init_subclass__(cls, auto: Sequence[Any] = (), **options: Any) -> None:
        """Makes a network known to these Auto classes of transformers, which find it by its ``model_type``."""
        super().__init_subclass__(**options)
        config: Any = cls.config_class
        for auto_class in auto:
            AutoConfig.register(config.model_type, config, exist_ok=True)
            auto_class.register(config, cls, exist_ok=True)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """True; what transformers reads from the source of a network differs by release."""
        return True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws weights as torch's modules do by themselves; loaded ones stay, the row of padding too."""
        loaded = all(
            getattr(weight, "_is_hf_initialized", False) for weight in module.parameters(recurse=False)
        )
        if isinstance(module, (nn.Linear, nn.LSTM, nn.Embedding)) and not loaded:
            module.reset_parameters()


class OwnEncoderDecoder(OwnPreTrainedModel):
    """Base of encoder-decoders whose encoder has the vectors of tokens, and whose decoder has a state of its own."""

    base_model_prefix = "model"

    def get_input_embeddings(self) -> nn.Module:
        """Vectors of tokens, of source and target."""
        model: Any = self.base_model
        vectors: nn.Module = model.encoder.embed_tokens
        return vectors

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the vectors of tokens."""
        model: Any = self.base_model
        model.encoder.embed_tokens = value

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The start token, and every label but the last; padding where a label is -100."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        before = labels[:, :-1].masked_fill(labels[:, :-1] < 0, self.config.pad_token_id)
        return torch.cat([start, before], dim=1)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: the first forward pass of a search makes the decoder's state."""
        return False


def layered_lstm(
    inputs: int, size: int, layers: int, dropout: float, *, bidirectional: bool = True
) -> nn.LSTM:
    """An LSTM over ``[B, S, inputs]`` with dropout between its layers, which torch refuses for a single one."""
    between = dropout if layers > 1 else 0.0
    return nn.LSTM(inputs, size, layers, batch_first=True, dropout=between, bidirectional=bidirectional)


def embed(network: Any, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """The vectors of tokens ``[B, S]``, or those themselves; ``ValueError`` for both or neither."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"{type(network).__name__}: expected input_ids or inputs_embeds, one of them")
    vectors: Tensor = network.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
    return vectors


def check_mask(owner: str, name: str, mask: Tensor | None, shape: torch.Size) -> None:
    """Raises ``ValueError`` unless the mask has one number for each token."""
    if mask is not None and mask.shape != shape:
        raise ValueError(f"{owner}: expected {name} {list(shape)}, got {list(mask.shape)}")


def read_padded(
    lstm: nn.LSTM, embedded: Tensor, attention_mask: Tensor | None, start: State | None = None
) -> tuple[Tensor, State]:
    """States ``[B, S, directions * u]`` of an LSTM over real words, 0 elsewhere, and the state after the last one."""
    if embedded.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # torch takes oneDNN's LSTM there, which many processors have in float32 alone
        dtype = next(lstm.parameters()).dtype
        begin = None if start is None else (start[0].to(dtype), start[1].to(dtype))
        with torch.autocast("cpu", enabled=False):
            return _read(lstm, embedded.to(dtype), attention_mask, begin)
    return _read(lstm, embedded, attention_mask, start)


def _read(
    lstm: nn.LSTM, embedded: Tensor, attention_mask: Tensor | None, start: State | None
) -> tuple[Tensor, State]:
    states: Tensor
    last: State
    if attention_mask is None:
        states, last = lstm(embedded, start)
        return states, last
    real = attention_mask.bool()
    front = torch.argsort(real.logical_not().byte(), dim=1, stable=True)  # own words first, in their order
    lengths = real.sum(dim=1).clamp_min(1)
    words = _at(embedded, front)
    if embedded.device.type == "cpu" and _depends_on_weights_only(lstm):
        states, last = _read_padded(lstm, words, lengths, start)
    else:
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed_states, last = lstm(packed, start)
        states, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=real.shape[1])
    return _at(states, front.argsort(dim=1)).masked_fill(~real[..., None], 0), last


def _depends_on_weights_only(lstm: nn.LSTM) -> bool:
    """True if a call of the module depends on its weights alone; pruning and offloading do more."""
    hooks = (lstm._forward_hooks, lstm._forward_pre_hooks, lstm._backward_hooks, lstm._backward_pre_hooks)
    return type(lstm) is nn.LSTM and not any(hooks) and "forward" not in vars(lstm)


def _read_padded(lstm: nn.LSTM, words: Tensor, lengths: Tensor, start: State | None) -> tuple[Tensor, State]:
    """Output of ``lstm`` for a packed sequence (real words first), in time linear in the length.

    The gradient of a packed sequence takes quadratic time on a CPU. So every layer and direction reads padding too,
    where one more input, 1 there, closes the input gate and opens the forget gate, which leaves the cell unchanged.
    """
    order = torch.arange(words.shape[1])
    padding = order >= lengths[:, None]
    reverse = torch.where(padding, order, lengths[:, None] - 1 - order)  # its own inverse
    end = lengths[:, None] - 1
    if start is None:
        count = len(lstm.all_weights), len(words)
        start = (
            words.new_zeros(*count, lstm.proj_size or lstm.hidden_size),
            words.new_zeros(*count, lstm.hidden_size),
        )
    shut = padding[..., None].to(words.dtype)
    at_padding = words.new_tensor([-SHUT, SHUT, 0.0, 0.0])  # gates: input, forget, cell, output
    gates = at_padding.repeat_interleave(lstm.hidden_size)[:, None]
    inputs, read, last = words.masked_fill(padding[..., None], 0), [], []
    for index, (into, *other_weights) in enumerate(lstm.all_weights):
        backward = lstm.bidirectional and index % 2 == 1
        padded = torch.cat([_at(inputs, reverse) if backward else inputs, shut], dim=-1)
        begin = [state[index : index + 1] for state in start]
        weights = [torch.cat([into, gates], dim=1), *other_weights]
        states, _, cell = torch.lstm(padded, begin, weights, lstm.bias, 1, 0.0, lstm.training, False, True)
        last.append((_at(states, end)[:, 0], cell[0]))
        read.append(_at(states, reverse) if backward else states)
        if len(read) == 1 + lstm.bidirectional:
            inputs, read = torch.cat(read, dim=-1), []
            if index + 1 < len(lstm.all_weights):
                inputs = F.dropout(inputs, lstm.dropout, lstm.training)
    hidden, cells = zip(*last, strict=True)
    return inputs, (torch.stack(hidden), torch.stack(cells))


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """Rows ``[B, K, E]`` of values ``[B, S, E]`` at positions ``[B, K]``."""
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))
