"""Particles, checked, and the distances between them, by matrix products."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def checked_particles(owner: str, particles: Tensor) -> Tensor:
    """The particles [M, N], checked, without gradient history, at least in float32."""
    if particles.dim() != 2 or not particles.shape[0]:
        raise ValueError(
            f"{owner}: expected particles [M, N], one row each and M >= 1, got shape {list(particles.shape)}"
        )
    if not particles.is_floating_point():
        raise TypeError(f"{owner}: expected floating-point particles, got {particles.dtype}")
    particles = particles.detach()
    return particles.float() if particles.dtype in (torch.float16, torch.bfloat16) else particles


def checked_pair(owner: str, particles: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Particles and gradients of one shape, type and device, as :func:`checked_particles` gives them."""
    if grads.shape != particles.shape:
        raise ValueError(
            f"{owner}: expected one gradient per particle, {list(particles.shape)}, got {list(grads.shape)}"
        )
    if grads.dtype != particles.dtype or grads.device != particles.device:
        raise ValueError(
            f"{owner}: expected gradients like the particles ({particles.dtype} on {particles.device}), "
            f"got {grads.dtype} on {grads.device}"
        )
    return checked_particles(owner, particles), checked_particles(owner, grads)


ROUNDING = 8.0  # a squared distance below so many units of rounding is one of coincident particles


def centre(particles: Tensor) -> Tensor:
    """Particles around their mean ``[M, N]``: distances are the same there and rounding errors smaller."""
    return particles - particles.mean(dim=0)


def squared_distances(particles: Tensor) -> Tensor:
    """Squared distances [M, M] of particles [M, N] by one matrix product; exactly 0 for coincident ones."""
    eps = torch.finfo(particles.dtype).eps
    centred = centre(particles)
    norms = centred.square().sum(dim=-1)
    sums = norms.unsqueeze(-1) + norms
    squares = sums - 2 * (centred @ centred.T)
    resolution = ROUNDING * eps * sums + (ROUNDING * eps) ** 2 * particles.square().sum(dim=-1).max()
    return squares.masked_fill(squares <= resolution, 0.0).fill_diagonal_(0.0)


def median_bandwidth(squares: Tensor) -> Tensor:
    """The bandwidth med^2 / log M (An et al. 2020, appendix B) of squared distances [M, M], or each of [M, M, N]."""
    # The lower median over different particles; over those apart where it is 0; h = 1 where none are apart.
    count = squares.shape[0]
    if count == 1:
        return torch.ones_like(squares[0, 0])
    rows, columns = torch.triu_indices(count, count, 1, device=squares.device)
    between = squares[rows, columns]  # each pair once, [M (M - 1) / 2, ...]
    median = between.median(dim=0).values
    # Many medians are slow, and so is reading one from a GPU.
    if squares.dim() == 2 or not bool((median > 0).all()):
        apart = torch.where(between > 0, between, torch.nan).nanmedian(dim=0).values
        median = torch.where(median > 0, median, apart)
    # A squared distance that is subnormal would give an infinite inverse.
    return _usable(median, math.log(count))


def full_median_bandwidth(squares: Tensor) -> Tensor:
    """The bandwidth med^2 / log(M + 1) of squared distances [M, M], the median over all of them, zeros included."""
    return _usable(squares.flatten().quantile(0.5), math.log(len(squares) + 1))


def _usable(median: Tensor, logarithm: float) -> Tensor:
    usable = median > torch.finfo(median.dtype).tiny * 1e3
    return torch.where(usable, median / logarithm, 1.0)
