"""Making the modules of attention methods; each registers itself where it stands."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


@functools.singledispatch
def build(method: object, num_heads: int, head_dim: int, **options: Any) -> nn.Module:
    """Makes the module of a method for one attention call.

    Args:
        method: the options; the module is registered for their class.
        num_heads: H.
        head_dim: D, size of a key head.
        **options: what the module takes besides.

    Raises:
        TypeError: no module is registered.
    """
    given = ", ".join(map(str, (num_heads, head_dim, *options)))
    raise TypeError(f"{type(method).__name__}: no module is registered that could be built with {given}")
