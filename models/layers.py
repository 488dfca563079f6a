"""Parts of networks that are built from scratch: bases, dot-product attention, an LSTM over padded sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probattn.checks import check_integer, check_share
from probattn.options import Count, Dropout, Natural

Attended = tuple[Tensor, Tensor | None]
"""Output of an attention call, and its weights, if the attention implementation gives any."""
Mask = Tensor | None
"""None where everything is valid."""
State = tuple[Tensor, Tensor]
"""Hidden and cell state of every layer and direction, ``[layers * directions, B, u]`` each."""

SHUT = 1e4
"""Offset that holds a gate open or shut: its sigmoid is 1 or 0 in every type."""

PAD, UNKNOWN, BEGIN, END = range(4)
"""Numbers of the special tokens, which :class:`probattn.data.Subwords` gives them too."""


def _check_flag(owner: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{name}: expected true or false, got {value!r}")


CHECKS: Mapping[Any, Callable[[str, str, object], None]] = {
    Count: partial(check_integer, minimum=1),
    Natural: partial(check_integer, minimum=0),
    Dropout: partial(check_share, one=False),
    bool: _check_flag,
}
"""Checks of a configuration's arguments, by annotation."""


class OwnConfig(PretrainedConfig):
    """Base of configurations of our own: padding is token 0 by default."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pad_token_id": PAD} | kwargs)

    def _take(self, constructor: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        """Makes a constructor's arguments attributes; ``ValueError`` unless they are what its annotations say."""
        for name, kind in get_type_hints(constructor, include_extras=True).items():
            if name not in ("kwargs", "return"):
                value = arguments[name]
                setattr(self, name, value)
                optional = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else ()
                if value is not None or NoneType not in optional:
                    check = CHECKS.get(optional[0] if optional else kind)
                    if check is not None:
                        check(type(self).__name__, name, value)


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
        weights = module.parameters(recurse=False)
        loaded = all(getattr(weight, "_is_hf_initialized", False) for weight in weights)
        if isinstance(module, (nn.Linear, nn.LSTM, nn.Embedding)) and not loaded:
            module.reset_parameters()


class OwnEncoderDecoder(OwnPreTrainedModel):
    """Base of encoder-decoders whose encoder has the vectors of tokens, and whose decoder has a state of its own."""

    base_model_prefix = "model"

    def get_input_embeddings(self) -> nn.Module:
        """Vectors of tokens, of source and target."""
        model: Any = self.base_model
        return model.encoder.embed_tokens

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


def deep_lstm(inputs: int, size: int, layers: int, dropout: float, *, bidirectional: bool = True) -> nn.LSTM:
    """An LSTM over ``[B, S, inputs]`` with dropout between its layers, which torch refuses for a single one."""
    between = dropout if layers > 1 else 0.0
    return nn.LSTM(inputs, size, layers, batch_first=True, dropout=between, bidirectional=bidirectional)


def embed(network: Any, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """The vectors of tokens ``[B, S]``, or those themselves; ``ValueError`` for both or neither."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"{type(network).__name__}: expected input_ids or inputs_embeds, one of them")
    return network.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds


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


def _read(lstm: nn.LSTM, embedded: Tensor, mask: Tensor | None, start: State | None) -> tuple[Tensor, State]:
    states: Tensor
    last: State
    if mask is None:
        states, last = lstm(embedded, start)
        return states, last
    real = mask.bool()
    front = torch.argsort(real.logical_not().byte(), dim=1, stable=True)  # own words first, in their order
    lengths = real.sum(dim=1).clamp_min(1)
    words = _at(embedded, front)
    # Pruning and offloading make a call depend on more than the weights.
    hooks = (lstm._forward_hooks, lstm._forward_pre_hooks, lstm._backward_hooks, lstm._backward_pre_hooks)
    plain = type(lstm) is nn.LSTM and not any(hooks) and "forward" not in vars(lstm)
    if embedded.device.type == "cpu" and plain:
        states, last = _read_padded(lstm, words, lengths, start)
    else:
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed_states, last = lstm(packed, start)
        states, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=real.shape[1])
    return _at(states, front.argsort(dim=1)).masked_fill(~real[..., None], 0), last


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
        count, width = (len(lstm.all_weights), len(words)), lstm.proj_size or lstm.hidden_size
        start = words.new_zeros(*count, width), words.new_zeros(*count, lstm.hidden_size)
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


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Output ``[B, T, H, E]`` and weights, with transformers' signature; heads may share keys ``[B, 1, S, D]``."""
    heads = query.shape[1:3]
    shared = key.shape[1] == 1
    if shared:  # heads one after the other are so many queries of the one key head
        query, key, value = query.flatten(1, 2), key[:, 0], value[:, 0]
    scores = query @ key.mT * scaling
    if shared:
        scores = scores.unflatten(1, heads)  # [B, H, T, S]
    if attention_mask is not None:
        scores = scores + attention_mask
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = F.softmax(scores, dim=-1, dtype=precise).to(query.dtype)
    weights = F.dropout(weights, dropout, training=module.training)
    output = (weights.flatten(1, 2) @ value).unflatten(1, heads) if shared else weights @ value
    return output.transpose(1, 2).contiguous(), weights


def valid_positions(mask: Tensor | None, states: Tensor) -> Tensor:
    """bool ``[B, S]`` of a mask of states or tokens ``[B, S, ...]``, True everywhere without one."""
    return states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()


def additive_mask(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``valid`` (bool), the smallest number of the type elsewhere."""
    zeros = torch.zeros(valid.shape, dtype=dtype, device=valid.device)
    return zeros.masked_fill(~valid, torch.finfo(dtype).min)


def all_maps(maps: Sequence[Tensor | None]) -> tuple[Tensor, ...] | None:
    """The attention maps of several calls; None where the attention implementation gives none."""
    present = [item for item in maps if item is not None]
    return tuple(present) if len(present) == len(maps) else None


class OwnAttention(nn.Module):
    """Base of attention modules of our own, whose family's eager attention function is that of this file."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config

    def dot_product(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, **options: Any) -> Attended:
        """Output ``[B, T, H, E]`` and weights of the function that the configuration names, unscaled by default."""
        defaults = {"scaling": 1.0, "dropout": 0.0}
        return attention_function(self.config)(self, query, key, value, mask, **defaults | options)


class ProjectedAttention(OwnAttention):
    """Scaled dot-product attention with projections of queries, keys and values (Vaswani et al. 2017)."""

    def __init__(self, config: PretrainedConfig, dropout: float = 0.0, *, bias: bool = True) -> None:
        super().__init__(config)
        self.dropout = dropout
        self.num_heads = config.num_attention_heads
        size = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(size, size, bias=bias) for _ in range(3))
        self.scaling = (size // self.num_heads) ** -0.5

    def attend(self, states: Tensor, others: Tensor, mask: Tensor, valid: Mask, **options: Any) -> Attended:
        """Outputs ``[B, T, d]`` and weights of states ``[B, T, d]`` that attend to others; ``valid``: real states."""
        query, key, value = self.query(states), self.key(others), self.value(others)
        projected = (self.heads(query), self.heads(key), self.heads(value))
        options |= {"dropout": self.dropout if self.training else 0.0, "query_mask": valid}
        mask = mask.expand(-1, -1, states.shape[1], -1)
        output, weights = self.dot_product(*projected, mask, scaling=self.scaling, **options)
        return output.flatten(2), weights

    def heads(self, values: Tensor) -> Tensor:
        """Projected values ``[B, T, d]`` by head, ``[B, H, T, D]``."""
        return values.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def attention_function(config: PretrainedConfig) -> Callable[..., Attended]:
    """The attention function that a configuration names; for "eager" or None the eager one above."""
    name = config._attn_implementation
    return eager_attention_forward if name in {None, "eager"} else ALL_ATTENTION_FUNCTIONS[name]
