"""Makes the modules of attention methods and the programs of networks; each registers itself where it is defined."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


@functools.singledispatch
def build(method: object, num_heads: int, head_dim: int, **options: Any) -> nn.Module:
    """Makes the module of a method for an attention call of H heads of size D; ``TypeError`` if not registered."""
    arguments = ", ".join(map(str, (num_heads, head_dim, *options)))
    raise TypeError(f"{type(method).__name__}: no module is registered that could be built with {arguments}")


@functools.singledispatch
def as_program(model: Any) -> Any:
    """The Pyro program of a network, chosen by its head; any other model is its own. PEFT's wrapper is its network."""
    wrapped = getattr(model, "get_base_model", None)
    if not callable(wrapped):
        return model
    return as_program.dispatch(type(wrapped()))(model)
