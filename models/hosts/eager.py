"""A family's own eager attention, for calls that stay deterministic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

EagerAttention = Callable[..., tuple[Tensor, Tensor | None]]


def eager_attention(module: nn.Module) -> EagerAttention:
    """What the module's family does under ``attn_implementation="eager"``.

    Args:
        module: an attention module of a Hugging Face network.

    Returns:
        A function with the signature of transformers' attention functions.

    Raises:
        RuntimeError: neither the module's file nor that of a class it derives from has one.
    """
    if getattr(module, "reorder_and_upcast_attn", False):
        return _reordered  # GPT-2's option, which it honours under the name "eager" alone
    for cls in type(module).__mro__:
        found: EagerAttention | None = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if found is not None:
            return found
    raise RuntimeError(f"{type(module).__name__}: its modeling file defines no eager_attention_forward")


def _reordered(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: object
) -> tuple[Tensor, Tensor | None]:
    result: tuple[Tensor, Tensor | None] = module._upcast_and_reordered_attn(
        query, key, value, attention_mask
    )
    return result
