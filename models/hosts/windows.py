"""Hosts that fold windows of one datum into the batch: their windows are placed next to the heads of the site.

A Swin network attends within windows, ``[B * W, H, T, D]`` with W windows per image. A site's batch dimension is that
of the data plate, so its weights are ``[B, W * H, T, S]``: window 0's heads, then window 1's. Both are views of the
same memory.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from probattn.models.hosts.eager import HostCall


def windows_to_heads(tensor: Tensor, windows: int) -> Tensor:
    """``[B * W, H, ...]`` as ``[B, W * H, ...]``; one row for all stays one row."""
    if windows == 1:
        return tensor
    if len(tensor) == 1:
        return tensor.repeat(1, windows, *[1] * (tensor.dim() - 2))
    return tensor.reshape(len(tensor) // windows, windows * tensor.shape[1], *tensor.shape[2:])


def call_windows_to_heads(host: HostCall, windows: int) -> HostCall:
    """The call with :func:`windows_to_heads` of its queries, keys and values; itself where there is one window."""
    if windows == 1:
        return host
    query, key, value = (windows_to_heads(tensor, windows) for tensor in (host.query, host.key, host.value))
    return replace(host, query=query, key=key, value=value)


def in_batch(tensor: Tensor, windows: int) -> Tensor:
    """``[B, W * H, ...]`` as ``[B * W, H, ...]``, undoing :func:`windows_to_heads`."""
    return tensor if windows == 1 else tensor.reshape(len(tensor) * windows, -1, *tensor.shape[2:])


def as_tokens(tensor: Tensor, windows: int) -> Tensor:
    """``[B, W * H, T, ...]`` as ``[B, H, W * T, ...]``: the windows of :func:`windows_to_heads` one after the other."""
    if windows == 1:
        return tensor
    return tensor.unflatten(1, (windows, -1)).transpose(1, 2).flatten(2, 3)


def count_windows(rows: int, data: int | None, site: str) -> int:
    """W, from the rows ``B * W`` of a call; an error where B does not fit or, outside a pass, is not known."""
    if not data or rows % data:
        raise RuntimeError(
            f"site {site!r}: its host folds windows into the batch, whose size is not known in this pass; call the "
            "whole network"
        )
    return rows // data
