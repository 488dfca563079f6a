"""One call of a host's attention function, the eager attention of its family, and families that call none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
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


BRIDGES = {
    "transformers.models.deberta.modeling_deberta": {
        "DisentangledSelfAttention": "probattn.models.hosts.disentangled.BridgedDeberta"
    },
    "transformers.models.deberta_v2.modeling_deberta_v2": {
        "DisentangledSelfAttention": "probattn.models.hosts.disentangled.BridgedDebertaV2"
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
    cls: type[nn.Module] = getattr(sys.modules[file], name)
    return cls


def is_bridge(module: nn.Module) -> bool:
    """True for a module that has the class of a bridge at present."""
    cls = type(module)
    return any(f"{cls.__module__}.{cls.__name__}" in classes.values() for classes in BRIDGES.values())
