"""One call of a host's attention function, and the eager attention of the host's family."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    result: Attended = module._upcast_and_reordered_attn(query, key, value, attention_mask)
    return result
