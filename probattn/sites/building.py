"""Makes the modules of attention methods; each registers itself where it is defined."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


@functools.singledispatch
def build(method: object, num_heads: int, head_dim: int, **options: Any) -> nn.Module:
    """Makes the module of a method for an attention call of H heads of size D; ``TypeError`` if not registered."""
    arguments = ", ".join(map(str, (num_heads, head_dim, *options)))
    raise TypeError(f"{type(method).__name__}: no module is registered that could be built with {arguments}")
