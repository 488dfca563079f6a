"""Attention scores before normalisation, and the precision of matrix products."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from probattn.host import at_least_float32
from probattn.sites.masks import AttentionMask


def repeat_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Repeats grouped heads ``[B, G, S, D]`` to ``[B, H, S, D]``; the tensor itself where G = H."""
    groups = tensor.shape[1]
    if groups == num_heads:
        return tensor
    if num_heads % groups:
        raise ValueError(f"expected key/value heads that divide {num_heads} query heads, got {groups}")
    return tensor.repeat_interleave(num_heads // groups, dim=1)


def attention_scores(
    query: Tensor,
    key: Tensor,
    mask: AttentionMask | None = None,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    r"""Scaled dot-product attention scores before normalisation; at forbidden pairs -1e30 is added.

    .. math:: \Phi = c \tanh(Q K^\top s / c) + b, \qquad \Phi = Q K^\top s + b \text{ without a cap.}

    Args:
        query: Q, ``[B, H, T, D]``.
        key: K, ``[B, H, S, D]``.
        mask: the allowed pairs; None allows all.
        scale: s; None for ``D ** -0.5`` (Vaswani et al. 2017).
        bias: b, additive scores such as those of relative positions, broadcastable to ``[B, H, T, S]``; finite.
        softcap: c, which limits the scores before the bias to (-c, c), as in Gemma 2; None for no limit.

    Returns:
        :math:`\Phi`, ``[B, H, T, S]``, float32 or float64.

    Example:
        >>> attention_scores(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 2, 4))
        tensor([[[[2., 2.]]]])
    """
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = at_least_float32(torch.matmul(query * factor, key.transpose(-1, -2)))  # [B, H, T, S]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores + mask.additive.to(scores.dtype)
    return scores


@contextmanager
def exact_products() -> Iterator[None]:
    """Float32 products in float32, also where the user allows TF32 or bfloat16; the settings are back afterwards."""
    backends = [torch.backends.cuda.matmul, cast(Any, torch.backends.mkldnn).matmul]
    before = [backend.fp32_precision for backend in backends]
    try:
        with warnings.catch_warnings():  # torch 2.9 recommends its newer settings, which are read above
            warnings.simplefilter("ignore")
            shared = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for a backend alone, and is no longer known for all
        shared = "highest"
    try:
        torch.set_float32_matmul_precision("highest")  # torch refuses to run where the two ways disagree
        yield
    finally:
        torch.set_float32_matmul_precision(shared)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


@contextmanager
def without_cudnn() -> Iterator[None]:
    """cuDNN, which has no backward pass of a recurrent network in evaluation mode, is off within."""
    # ``torch.backends.cudnn.flags`` would set its other flags too, of which torch 2.9 warns.
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before
