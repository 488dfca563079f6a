"""Distances between particles, by matrix products."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDING = 8.0
"""A squared distance below so many units of rounding is one of coincident particles."""


def centre(particles: Tensor) -> Tensor:
    """Particles around their mean ``[M, N]``: distances are the same there and rounding errors smaller."""
    return particles - particles.mean(dim=0)


def squared_distances(particles: Tensor) -> Tensor:
    """Squared distance of every pair ``[M, M]`` of particles ``[M, N]``, by one matrix product.

    What rounding leaves between coincident particles is exactly 0.
    """
    eps = torch.finfo(particles.dtype).eps
    centred = centre(particles)
    norms = centred.square().sum(dim=-1)
    sums = norms.unsqueeze(-1) + norms
    squares = sums - 2 * (centred @ centred.T)
    resolution = ROUNDING * eps * sums + (ROUNDING * eps) ** 2 * particles.square().sum(dim=-1).max()
    return squares.masked_fill(squares <= resolution, 0.0).fill_diagonal_(0.0)


def pairs(matrix: Tensor) -> Tensor:
    """The entries ``[M (M - 1) / 2, ...]`` of different particles in ``[M, M, ...]``, each pair once."""
    rows, columns = torch.triu_indices(matrix.shape[0], matrix.shape[1], 1, device=matrix.device)
    return matrix[rows, columns]


def median_bandwidth(squares: Tensor) -> Tensor:
    r"""The paper's bandwidth (An et al. 2020, appendix B), :math:`h = \mathrm{med}^2 / \log M`.

    The median is the lower one, over pairs of different particles. Where it is 0 it is taken over the pairs at a
    distance; where there are none (one particle, or all in one place) h is 1: the kernel is 1 there and its gradient 0.

    Args:
        squares: squared distances ``[M, M]`` or, one kernel per dimension, ``[M, M, N]``.

    Returns:
        ``[]`` or ``[N]``, > 0.
    """
    count = squares.shape[0]
    if count == 1:
        return torch.ones_like(squares[0, 0])
    between = pairs(squares)
    median = between.median(dim=0).values
    if squares.dim() == 2 or not bool(
        (median > 0).all()
    ):  # many medians are slow, and looking on a GPU is too
        apart = torch.where(between > 0, between, torch.nan).nanmedian(dim=0).values
        median = torch.where(median > 0, median, apart)
    # A squared distance that is subnormal would give an infinite inverse.
    usable = median > torch.finfo(median.dtype).tiny * 1e3
    return torch.where(usable, median / math.log(count), 1.0)
