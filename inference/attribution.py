"""Sums of what is attributed to attention weights: shares of the noise, and slopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Part = Literal["site", "head", "query", "key"]
PARTS: tuple[Part, ...] = ("site", "head", "query", "key")


def share_by(maps: Mapping[str, Tensor], *dimensions: Part) -> Tensor:
    """Sums noise shares or slopes of attention weights over all dimensions except the named ones.

    Args:
        maps: :attr:`Moments.noise_share` or :attr:`Moments.slope` (a sum of slopes is the derivative by the log of a
            common factor of the weights), ``[B, ..., H, T, S]`` by site.
        *dimensions: dimensions to keep, of "site", "head", "query" and "key"; none to sum over all.

    Returns:
        ``[B, ...]`` and the remaining dimensions, in the order site, head, query, key.

    Raises:
        ValueError: ``maps`` is empty, a dimension is unknown, or its size differs by site (then pass fewer sites).

    Example:
        >>> maps = {"layer.0": torch.full((1, 2, 3, 3), 0.01), "layer.1": torch.full((1, 2, 3, 3), 0.04)}
        >>> share_by(maps, "site"), share_by(maps, "site", "key").shape
        (tensor([[0.1800, 0.7200]]), torch.Size([1, 2, 3]))
    """
    unknown = [dimension for dimension in dimensions if dimension not in PARTS]
    if unknown or not maps:
        got = repr(unknown[0]) if unknown else "no maps; call posterior_moments(..., attribution=True)"
        listed = ", ".join(PARTS)
        raise ValueError(f"share_by: expected parts among {listed} and maps of some site, got {got}")
    summed = [index - 3 for index, dimension in enumerate(PARTS[1:]) if dimension not in dimensions]
    sums = [one.sum(dim=summed) if summed else one for one in maps.values()]
    shapes = sorted({tuple(one.shape) for one in sums})
    if len(shapes) > 1:
        raise ValueError(
            f"share_by: expected sites whose maps agree in what is kept ({', '.join(dimensions)}), got shapes "
            f"{shapes}; take the sites that belong together"
        )
    sites = next(iter(maps.values())).dim() - 3
    stacked = torch.stack(sums, dim=sites)
    return stacked if "site" in dimensions else stacked.sum(dim=sites)
