"""A family's own eager attention, for calls that stay deterministic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

EagerAttention = Callable[..., tuple[Tensor, Tensor | None]]


def eager_attention(module: nn.Module) -> EagerAttention:
    """The ``eager_attention_forward`` of the file that defines the module, or of a class it derives from.

    Raises:
        RuntimeError: there is none.
    """
    for cls in type(module).__mro__:
        found: Any = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if found is not None:
            return found
    raise RuntimeError(f"{type(module).__name__}: its modeling file defines no eager_attention_forward")
