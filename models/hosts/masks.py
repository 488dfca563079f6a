"""Hugging Face's additive attention masks as validity and bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHIFT_MASKS = {"modeling_swin": -50.0}
"""Families whose masks carry position biases and forbid pairs by adding -100: below this value a pair is forbidden."""


def carries_bias(module: nn.Module) -> bool:
    """Whether the module's mask also holds position biases."""
    return _family(module) in SHIFT_MASKS


def valid_pairs(module: nn.Module, additive: Tensor) -> Tensor:
    """Bool of the mask's shape, True where a query may attend to a key."""
    if additive.dtype == torch.bool:
        return additive
    threshold = SHIFT_MASKS.get(_family(module), torch.finfo(additive.dtype).min / 2)
    return additive > threshold


def own_keys(valid: Tensor, queries: int) -> Tensor:
    """Whether each query of a self attention is a real token: whether it may attend to its own key.

    Args:
        valid: ``[B, 1, T, S]``; with a cache S > T and the queries are the last T positions.
        queries: T.

    Returns:
        Bool ``[B, T]``.
    """
    return valid[:, 0].expand(-1, queries, -1).diagonal(offset=valid.shape[-1] - queries, dim1=-2, dim2=-1)


def _family(module: nn.Module) -> str:
    return type(module).__module__.rsplit(".", 1)[-1]
