"""One call of a host's attention function, its mask, and the eager attention of its family, or a bridge to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

Attended = tuple[Tensor, Tensor | None]
"""Output ``[B, T, H, E]``, contiguous, and weights ``[B, H, T, S]``, or None where a family gives none."""


class UnreadableError(TypeError):
    """Attention that is more than a softmax of scores, mask and biases, so that its weights cannot be made latent."""


EagerAttention = Callable[..., Attended]


@dataclass(frozen=True, eq=False)
class HostCall:
    """The arguments of a host's attention function; ``mask`` is additive or bool, ``[B | 1, 1 | H, T, S]``."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]

    def eager(self, **options: Any) -> Attended:
        """Output and weights of the family's eager attention; ``options`` override the host's."""
        attend = eager_attention(self.module)
        return attend(self.module, self.query, self.key, self.value, self.mask, **{**self.options, **options})


def eager_attention(module: nn.Module) -> EagerAttention:
    """The attention function of the module's family under ``attn_implementation="eager"``."""
    if getattr(module, "reorder_and_upcast_attn", False):
        return _reordered  # GPT-2's option, which it honours under the name "eager" alone
    for cls in type(module).__mro__:
        attend: EagerAttention | None = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if attend is not None:
            return attend
    raise RuntimeError(f"{type(module).__name__}: its modeling file defines no eager_attention_forward")


def _reordered(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: object
) -> Attended:
    return module._upcast_and_reordered_attn(query, key, value, attention_mask)


BRIDGES = {
    "transformers.models.deberta.modeling_deberta": {
        "DisentangledSelfAttention": "probattn.models.hosts.disentangled.BridgedDeberta"
    },
    "transformers.models.deberta_v2.modeling_deberta_v2": {
        "DisentangledSelfAttention": "probattn.models.hosts.disentangled.BridgedDebertaV2"
    },
    "transformers.models.mpnet.modeling_mpnet": {
        "MPNetSelfAttention": "probattn.models.hosts.mpnet.BridgedMPNet"
    },
}
"""By modeling file: its attention classes, each with its bridge."""


def has_bridge(module: nn.Module) -> bool:
    """True for networks and modules of a file whose attention classes have bridges, and for bridges."""
    return any(cls.__module__ in BRIDGES for cls in type(module).__mro__)


def bridge(module: nn.Module) -> type[nn.Module] | None:
    """The class that a module takes while its network's attention implementation is switched; None to stay as it is."""
    target = BRIDGES.get(type(module).__module__, {}).get(type(module).__name__)
    if target is None:
        return None
    file, _, name = target.rpartition(".")
    import_module(file)
    return getattr(sys.modules[file], name)


def is_bridge(module: nn.Module) -> bool:
    """True for a module that has the class of a bridge at present."""
    cls = type(module)
    return any(f"{cls.__module__}.{cls.__name__}" in classes.values() for classes in BRIDGES.values())


SHIFT_MASKS = {"modeling_swin": -50.0}
"""Files whose masks also hold position biases and forbid pairs by adding -100: below this value a pair is forbidden."""


@dataclass(frozen=True, eq=False)
class HostMask:
    """A host's mask as validity, None where all pairs are valid, and additive bias, None where it has none."""

    valid: Tensor | None = None
    bias: Tensor | None = None


_BIASED = "_probattn_biased"


def without_bias(mask: Tensor | None) -> Tensor | None:
    """Marks a mask as one that holds no bias, so that :func:`read_mask` asks no accelerator for its values."""
    if mask is not None:
        setattr(mask, _BIASED, False)
    return mask


def carries_bias(module: nn.Module) -> bool:
    """True if a module's masks also hold position biases; it attends within windows then."""
    return _shift_threshold(module) is not None


def read_mask(module: nn.Module, mask: Tensor | None) -> HostMask:
    """Reads the mask that a host hands to its attention function: additive, ``[B | 1, 1 | H, T, S]``, or bool."""
    if mask is None:
        return HostMask()
    biased = getattr(mask, _BIASED, True)
    if mask.dim() == 4 and mask.shape[2] > 1 and mask.stride(2) == 0:  # one row that all queries share
        row = read_mask(module, mask[:, :, :1] if biased else without_bias(mask[:, :, :1]))
        tensors = (row.valid, row.bias)
        return HostMask(*(None if one is None else one.expand(-1, -1, mask.shape[2], -1) for one in tensors))
    valid = valid_pairs(module, mask)
    if mask.dtype == torch.bool:
        return HostMask(valid)
    if carries_bias(module):  # one row of windows and heads for all data: biases alone
        return HostMask(None if len(mask) == 1 else valid, mask)
    if not biased:
        return HostMask(valid)
    bias = mask.masked_fill(~valid, 0.0)
    return HostMask(valid, bias if bool(bias.any()) else None)


def read_traced(module: nn.Module, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Validity and bias in a mask, whatever its values: a mask that may hold a bias has one."""
    if mask is None:
        return None, None
    valid = valid_pairs(module, mask)
    biased = mask.dtype != torch.bool and getattr(mask, _BIASED, True)
    return valid, mask.masked_fill(~valid, 0.0) if biased else None


def valid_pairs(module: nn.Module, mask: Tensor) -> Tensor:
    """Bool of the mask's shape, True where a query may attend to a key; a ``TypeError`` as in :func:`read_mask`."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise TypeError(
            f"attention_mask: expected an additive floating-point mask or a bool one, got {mask.dtype}"
        )
    threshold = _shift_threshold(module)
    return mask > (torch.finfo(mask.dtype).min / 2 if threshold is None else threshold)


def own_keys(valid: Tensor, queries: int) -> Tensor:
    """Bool ``[B, T]``, True where a query of self attention is real: it may attend to its own key."""
    rows = valid[:, 0].expand(-1, queries, -1)  # [B, T, S]
    keys = rows.shape[-1]
    if keys == queries:
        return rows.diagonal(dim1=-2, dim2=-1)
    # Their own keys are the last T before the empty places of a cache of fixed length, which no query may attend to.
    indices = torch.arange(1, keys + 1, device=valid.device)
    end = (rows.any(dim=0).any(dim=0) * indices).amax()
    position = (end - queries + indices[:queries] - 1).clamp_min(0)
    return rows.gather(-1, position.view(1, -1, 1).expand(len(rows), -1, 1)).squeeze(-1)


def _shift_threshold(module: nn.Module) -> float | None:
    for cls in type(module).__mro__:
        threshold = SHIFT_MASKS.get(cls.__module__.rpartition(".")[-1])
        if threshold is not None:
            return threshold
    return None


def windows_to_heads(tensor: Tensor, windows: int) -> Tensor:
    """``[B * W, H, ...]`` as ``[B, W * H, ...]``; one row for all stays one row."""
    if windows == 1:
        return tensor
    if len(tensor) == 1:
        return tensor.repeat(1, windows, *[1] * (tensor.dim() - 2))
    return tensor.reshape(len(tensor) // windows, windows * tensor.shape[1], *tensor.shape[2:])


def call_windows_to_heads(host: HostCall, windows: int) -> HostCall:
    """The call with :func:`windows_to_heads` of its queries, keys and values; itself where there is one window."""
    if windows == 1:
        return host
    query, key, value = (windows_to_heads(tensor, windows) for tensor in (host.query, host.key, host.value))
    return replace(host, query=query, key=key, value=value)


def in_batch(tensor: Tensor, windows: int) -> Tensor:
    """``[B, W * H, ...]`` as ``[B * W, H, ...]``, undoing :func:`windows_to_heads`."""
    return tensor if windows == 1 else tensor.reshape(len(tensor) * windows, -1, *tensor.shape[2:])


def as_tokens(tensor: Tensor, windows: int) -> Tensor:
    """``[B, W * H, T, ...]`` as ``[B, H, W * T, ...]``: the windows of :func:`windows_to_heads` one after the other."""
    if windows == 1:
        return tensor
    return tensor.unflatten(1, (windows, -1)).transpose(1, 2).flatten(2, 3)


def count_windows(rows: int, data: int | None, site: str) -> int:
    """W, from the rows ``B * W`` of a call; an error where B does not fit or, outside a pass, is not known."""
    if not data or rows % data:
        raise RuntimeError(
            f"site {site!r}: its host folds windows into the batch, whose size is not known in this pass; call the "
            "whole network"
        )
    return rows // data
