"""Checks of the inputs: ratings of positions, row by row, and masks."""

from __future__ import annotations

import torch
from torch import Tensor

from probattn.checks import check_instance


def rated(name: str, u: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Checks two ratings [..., L] and their mask, broadcast to one shape; ``name`` is the measure's, for messages."""
    for rating in (u, v):
        check_instance(name, "ratings", rating, Tensor, "tensors")
    if u.ndim == 0 or v.ndim == 0 or u.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"{name}: expected two ratings [..., L] of the same L positions, got {list(u.shape)} and {list(v.shape)}"
        )
    if not (u.is_floating_point() and v.is_floating_point()):
        raise TypeError(f"{name}: expected floating-point ratings, got {u.dtype} and {v.dtype}")
    try:
        u, v = torch.broadcast_tensors(u, v)
    except RuntimeError:
        raise ValueError(
            f"{name}: expected ratings whose rows fit each other, got {list(u.shape)} and {list(v.shape)}"
        ) from None
    mask = valid_positions(name, mask, u)
    for which, rating in (("first", u), ("second", v)):
        if bool((rating.isnan() & mask).any()):
            raise ValueError(
                f"{name}: expected numbers, got NaN in the {which} rating; mask positions without a rating"
            )
    return u, v, mask


def valid_positions(name: str, mask: Tensor | None, like: Tensor) -> Tensor:
    """A bool mask, expanded to the shape of ``like``; all True for None."""
    if mask is None:
        return torch.ones(like.shape, dtype=torch.bool, device=like.device)
    check_instance(name, "mask", mask, Tensor, "a bool tensor")
    if mask.dtype != torch.bool:
        raise TypeError(f"{name}: expected a bool mask, True for what counts, got {mask.dtype}")
    try:
        return mask.expand(like.shape)
    except RuntimeError:
        raise ValueError(
            f"{name}: expected a mask that fits {list(like.shape)}, got one of shape {list(mask.shape)}"
        ) from None


def check_targets(name: str, target: Tensor, outputs: int | None = None, advice: str = "") -> None:
    """Refuses targets that are not integers, or not among so many outputs."""
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(f"{name}: expected integer targets, got {target.dtype}")
    if outputs is not None and target.numel():
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= outputs:
            raise ValueError(f"{name}: expected targets in 0 .. {outputs - 1}, got {low} .. {high}{advice}")
