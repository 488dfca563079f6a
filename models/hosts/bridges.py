"""Families whose attention modules do not call transformers' attention interface, and the classes that make them.

A bridge is a subclass of a family's attention module without any state of its own. It computes queries, keys, values,
biases and mask as the family does and hands them to the attention function of converted networks. A network's modules
take their bridges as their class while its attention implementation is switched, and their own class afterwards.
"""

from __future__ import annotations

import sys
from importlib import import_module

from torch import nn

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
