"""Diversity of attention heads: distances of outputs, overlap of weights, similarity."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class HeadDistance(NamedTuple):
    """Result of :func:`head_distance`, tensors ``[]``.

    Attributes:
        distance: mean 2-norm of the difference between the outputs of two heads.
        relative: ``distance`` divided by the mean 2-norm of an output; invariant to a common factor of all outputs.
    """

    distance: Tensor
    relative: Tensor


def head_distance(output: Tensor, mask: Tensor | None = None) -> HeadDistance:
    r"""Mean distance between the outputs of two attention heads (Dist in An et al. 2020, Table 1).

    .. math:: \mathrm{Dist} = \operatorname*{mean}_{b, t} \frac{2}{H (H - 1)} \sum_{i < j} \|o_{b,i,t} - o_{b,j,t}\|_2

    It grows with the norm of the outputs; the relative distance is therefore Dist divided by the mean of
    :math:`\|o\|_2`. It is :math:`\sqrt 2` for orthogonal heads of equal norm and 0 for equal heads.

    Args:
        output: outputs of the heads before concatenation, ``[B, H, T, E]`` for B texts, H >= 2 heads, T queries.
        mask: bool ``[B, T]``, True for queries that count; None for all.

    Returns:
        Distance and relative distance, at least float32.

    Raises:
        TypeError: the mask is not bool, or the output is not floating-point.
        ValueError: fewer than two heads, shapes do not fit, or no query counts.

    Example:
        >>> head_distance(torch.eye(2).view(1, 2, 1, 2)).relative
        tensor(1.4142)
    """
    tokens = _counted("head_distance", output, mask)
    first, second = torch.triu_indices(tokens.shape[1], tokens.shape[1], offset=1, device=tokens.device)
    total = tokens.new_zeros(())
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        total = total + torch.linalg.vector_norm(tokens[:, one] - tokens[:, other], dim=-1).mean()
    distance = total / len(first)
    length = torch.linalg.vector_norm(tokens, dim=-1).mean()
    return HeadDistance(distance, distance / length.clamp_min(torch.finfo(tokens.dtype).tiny))


def attention_overlap(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Mean overlap of the attention weights w of two heads.

    .. math:: \operatorname*{mean}_{b, t} \frac{2}{H (H - 1)} \sum_{i < j} \sum_s \min(w_{b,i,t,s}, w_{b,j,t,s})

    The overlap is one minus the total variation distance: 1 for equal heads, 0 for heads that share no key. The weights
    ``[B, H, T, S]``, H >= 2, sum to 1 over the S keys; mask and errors are those of :func:`head_distance`.

    Returns:
        ``[]``, at least float32.

    Example:
        >>> attention_overlap(torch.tensor([[[[0.5, 0.5, 0.0]], [[0.0, 0.5, 0.5]]]]))
        tensor(0.5000)
    """
    rows = _counted("attention_overlap", weights, mask)
    heads = rows.shape[1]
    total = rows.new_zeros(())
    for head in range(1, heads):
        total = total + torch.minimum(rows[:, head:], rows[:, :-head]).sum(dim=(1, 2)).mean()
    return total / (heads * (heads - 1) / 2)


def head_similarity(output: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Cosine between the outputs of every two heads, averaged over queries.

    Arguments and errors are those of :func:`head_distance`. An output of norm 0 has cosine 0 with all.

    Returns:
        ``[H, H]``, symmetric, at least float32; 1 on the diagonal where outputs are not 0.

    Example:
        >>> head_similarity(torch.tensor([[[[1.0, 0.0]], [[1.0, 1.0]]]]))
        tensor([[1.0000, 0.7071],
                [0.7071, 1.0000]])
    """
    tokens = _counted("head_similarity", output, mask)
    length = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
    directions = tokens / length.clamp_min(torch.finfo(tokens.dtype).tiny)
    return torch.einsum("nie,nje->ij", directions, directions) / len(tokens)


def _counted(owner: str, tensor: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs or weights ``[N, H, ...]`` of the N queries that count, at least float32."""
    if tensor.dim() != 4:
        raise ValueError(
            f"{owner}: expected a tensor [B, H, T, ...] of four dimensions, got {list(tensor.shape)}"
        )
    if not tensor.is_floating_point():
        raise TypeError(f"{owner}: expected floating-point numbers, got {tensor.dtype}")
    batch, heads, length, _ = tensor.shape
    if heads < 2:
        raise ValueError(f"{owner}: expected at least 2 heads to compare, got {heads}")
    if mask is None:
        mask = torch.ones(batch, length, dtype=torch.bool, device=tensor.device)
    if mask.dtype != torch.bool:
        raise TypeError(f"{owner}: expected a bool mask (True = counts), got {mask.dtype}")
    if mask.shape != (batch, length):
        raise ValueError(f"{owner}: expected a mask [{batch}, {length}], got {list(mask.shape)}")
    if not bool(mask.any()):
        raise ValueError(f"{owner}: expected at least one query that counts, got none")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).transpose(1, 2)[mask]
