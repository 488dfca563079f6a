"""Similarity of the heads of an attention call, as baselines of repulsive attention penalise it."""

from __future__ import annotations

import torch
from torch import Tensor


def frobenius_penalty(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""The penalty of Lin et al. 2017 (Eq. 8) on the rows of an attention matrix.

    .. math:: P_b = \operatorname*{mean}_t \|A_{b,t} A_{b,t}^\top - I\|_F^2, \qquad A_{b,t} = w_{b,:,t,:} \in
        \mathbb R^{H \times S}

    In the paper a sentence has a single matrix A, a row a head; here each query has one, and the penalty is their mean.
    It is 0 where every head attends to one key and no two heads to the same.

    Args:
        weights: attention weights ``[B, H, T, S]``.
        mask: bool ``[B, T]``, True for queries that count; None for all.

    Returns:
        ``[B]``, at least float32; 0 for a sample without queries.

    Raises:
        TypeError: the mask is not bool, or the weights are not floating-point.
        ValueError: shapes that do not fit.

    Example:
        >>> frobenius_penalty(torch.eye(3)[None, :, None, :])  # three heads, each with a key of its own
        tensor([0.])
        >>> frobenius_penalty(torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]]]))
        tensor([2.])
    """
    weights = _checked("frobenius_penalty", weights)
    with torch.autocast(weights.device.type, enabled=False):
        rows = weights.transpose(1, 2)  # [B, T, H, S]
        products = rows @ rows.transpose(-1, -2)
        excess = products - torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
        return _token_mean("frobenius_penalty", excess.square().sum(dim=(-1, -2)), mask)


def position_agreement(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Overlap of the heads' attention over keys: minus the disagreement of Li et al. 2018 (Eq. 8).

    .. math:: -D_b^{\mathrm{pos}} = \operatorname*{mean}_t \frac{1}{H^2} \sum_{i,j=1}^H \sum_s w_{b,i,t,s} w_{b,j,t,s}

    The terms i = j are the paper's too: they reward attention that is spread out. The paper's sum over queries is a
    mean here, so that long texts do not weigh more.

    Args:
        weights: attention weights ``[B, H, T, S]``.
        mask: bool ``[B, T]``, True for queries that count; None for all.

    Returns:
        ``[B]``, at least float32, between 0 and 1.

    Raises:
        TypeError: the mask is not bool, or the weights are not floating-point.
        ValueError: shapes that do not fit.

    Example:
        >>> position_agreement(torch.eye(2)[None, :, None, :])
        tensor([0.5000])
    """
    weights = _checked("position_agreement", weights)
    # the double sum over heads is the square of their sum
    return _token_mean("position_agreement", weights.mean(dim=1).square().sum(dim=-1), mask)


def cosine_agreement(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""The mean cosine between heads, minus the disagreement of Li et al. 2018 on subspaces (Eq. 7) or outputs (Eq. 9).

    .. math:: -D_b = \operatorname*{mean}_t \frac{1}{H^2} \sum_{i,j=1}^H
        \frac{x_{b,i,t} \cdot x_{b,j,t}}{\|x_{b,i,t}\| \|x_{b,j,t}\|}

    with x the values of the keys' tokens (subspaces) or the heads' outputs. The terms i = j, 1 each, are the paper's.

    Args:
        vectors: ``[B, H, T, E]``. A vector of length 0 has cosine 0 with all.
        mask: bool ``[B, T]``, True for tokens that count; None for all.

    Returns:
        ``[B]``, at least float32, between 0 and 1.

    Raises:
        TypeError: the mask is not bool, or the vectors are not floating-point.
        ValueError: shapes that do not fit.

    Example:
        >>> cosine_agreement(torch.eye(2)[None, :, None, :])
        tensor([0.5000])
    """
    vectors = _checked("cosine_agreement", vectors)
    directions = torch.nn.functional.normalize(vectors, dim=-1)
    return _token_mean("cosine_agreement", directions.mean(dim=1).square().sum(dim=-1), mask)


def parameter_agreement(particles: Tensor) -> Tensor:
    r"""Similarity of the heads of a projection: the cosine penalty on parameters (An et al. 2020, section C.6).

    .. math:: \frac{1}{2 H} \sum_{i,j=1}^H \frac{\theta_i \cdot \theta_j}{\|\theta_i\| \|\theta_j\|}

    Its gradient in :math:`\theta_i` is :math:`\frac1H \sum_j \nabla_{\theta_i} \cos(\theta_i, \theta_j)`, the second
    term of the section's first update, with the sign of a penalty: as printed there the term would draw heads together.

    Args:
        particles: the heads' weights ``[H, N]``. One of length 0 has cosine 0 with all.

    Returns:
        ``[]``, at least float32, between 0 and H / 2.

    Raises:
        TypeError: the particles are not floating-point.
        ValueError: another number of dimensions.

    Example:
        >>> parameter_agreement(torch.eye(2))
        tensor(0.5000)
    """
    if particles.dim() != 2:
        raise ValueError(f"parameter_agreement: expected particles [H, N], got {list(particles.shape)}")
    particles = _floating("parameter_agreement", particles)
    directions = torch.nn.functional.normalize(particles, dim=-1)
    return directions.sum(dim=0).square().sum() / (2 * len(particles))


def _checked(owner: str, tensor: Tensor) -> Tensor:
    if tensor.dim() != 4:
        raise ValueError(
            f"{owner}: expected a tensor [B, H, T, ...] of four dimensions, got {list(tensor.shape)}"
        )
    return _floating(owner, tensor)


def _floating(owner: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise TypeError(f"{owner}: expected floating-point numbers, got {tensor.dtype}")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _token_mean(owner: str, values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean ``[B]`` of values ``[B, T]`` over the tokens that count."""
    if mask is None:
        return values.sum(dim=-1) / max(values.shape[1], 1)
    if mask.dtype != torch.bool:
        raise TypeError(f"{owner}: expected a bool mask (True = counts), got {mask.dtype}")
    if mask.shape != values.shape:
        raise ValueError(f"{owner}: expected a mask {list(values.shape)}, got {list(mask.shape)}")
    # zeroed before the sum: values at padding need not be finite
    valid_values = values.masked_fill(~mask, 0.0)
    return valid_values.sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)
