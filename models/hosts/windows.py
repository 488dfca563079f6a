"""Hosts that fold windows of one datum into the batch: their windows stand beside the heads of the site.

A Swin network attends within windows, ``[B * W, H, T, D]`` with W windows per image. A site's batch dimension is that
of the data plate, so its weights are ``[B, W * H, T, S]``: window 0's heads, then window 1's. Both are views of the
same memory.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from probattn.models.hosts.eager import HostCall


def beside_heads(tensor: Tensor, windows: int) -> Tensor:
    """``[B * W, H, ...]`` as ``[B, W * H, ...]``; one row for all stays one row.

    Args:
        tensor: queries, keys, values, a mask or a bias of windows.
        windows: W.

    Example:
        >>> import torch
        >>> beside_heads(torch.ones(6, 2, 4, 4), 3).shape
        torch.Size([2, 6, 4, 4])
    """
    if windows == 1:
        return tensor
    if len(tensor) == 1:
        return tensor.repeat(1, windows, *[1] * (tensor.dim() - 2))
    return tensor.reshape(len(tensor) // windows, windows * tensor.shape[1], *tensor.shape[2:])


def windows_beside_heads(host: HostCall, windows: int) -> HostCall:
    """The call with :func:`beside_heads` of its queries, keys and values; itself where there is one window."""
    if windows == 1:
        return host
    query, key, value = (beside_heads(tensor, windows) for tensor in (host.query, host.key, host.value))
    return replace(host, query=query, key=key, value=value)


def in_batch(tensor: Tensor, windows: int) -> Tensor:
    """``[B, W * H, ...]`` as ``[B * W, H, ...]``, undoing :func:`beside_heads`."""
    return tensor if windows == 1 else tensor.reshape(len(tensor) * windows, -1, *tensor.shape[2:])


def as_tokens(tensor: Tensor, windows: int) -> Tensor:
    """``[B, W * H, T, ...]`` as ``[B, H, W * T, ...]``: the windows of :func:`beside_heads` one after the other.

    Args:
        tensor: queries, keys or a mask of them, windows beside heads.
        windows: W.

    Example:
        >>> import torch
        >>> as_tokens(torch.ones(2, 6, 4, 5), 3).shape
        torch.Size([2, 2, 12, 5])
    """
    if windows == 1:
        return tensor
    return tensor.unflatten(1, (windows, -1)).transpose(1, 2).flatten(2, 3)


def count_windows(rows: int, data: int | None, site: str) -> int:
    """W, from the rows ``B * W`` of a call.

    Args:
        rows: of the call.
        data: B, known during a pass of the whole stack.
        site: name of the call.

    Raises:
        RuntimeError: B is not known, or does not fit.
    """
    if not data or rows % data:
        raise RuntimeError(
            f"site {site!r}: its host folds windows into the batch, whose size is not known in this pass; call the "
            "whole network"
        )
    return rows // data
