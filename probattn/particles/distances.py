"""Particles, checked, and the distances between them, by matrix products."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probattn.host import at_least_float32, on_cpu


def checked_particles(owner: str, particles: Tensor, *, sets: bool = False) -> Tensor:
    """The particles [M, N], or ``sets`` of them [..., M, N], checked, without gradient history, at least float32."""
    if particles.dim() < 2 or (particles.dim() > 2 and not sets) or not particles.shape[-2]:
        raise ValueError(
            f"{owner}: expected particles [M, N], one row each and M >= 1, got shape {list(particles.shape)}"
        )
    if not particles.is_floating_point():
        raise TypeError(f"{owner}: expected floating-point particles, got {particles.dtype}")
    return at_least_float32(particles.detach())


def checked_pair(
    owner: str, particles: Tensor, grads: Tensor, *, sets: bool = False
) -> tuple[Tensor, Tensor]:
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
    return checked_particles(owner, particles, sets=sets), checked_particles(owner, grads, sets=sets)


ROUNDING = 8.0  # a squared distance below so many units of rounding is one of coincident particles


def centre(particles: Tensor) -> Tensor:
    """Particles around their mean ``[..., M, N]``: distances are the same there and rounding errors smaller."""
    return particles - particles.mean(dim=-2, keepdim=True)


def squared_distances(particles: Tensor, centred: Tensor | None = None) -> Tensor:
    """Squared distances [..., M, M] of particles [..., M, N] by one matrix product; exactly 0 for coincident ones."""
    eps = torch.finfo(particles.dtype).eps
    centred = centre(particles) if centred is None else centred
    norms = centred.square().sum(dim=-1)
    sums = norms.unsqueeze(-1) + norms.unsqueeze(-2)
    squares = torch.sub(sums, centred @ centred.mT, alpha=2)
    length = particles.square().sum(dim=-1).amax(dim=-1)[..., None, None]
    resolution = torch.add(length * (ROUNDING * eps) ** 2, sums, alpha=ROUNDING * eps)
    squares.masked_fill_(squares <= resolution, 0.0).diagonal(dim1=-2, dim2=-1).zero_()
    return squares


def median_bandwidth(squares: Tensor) -> Tensor:
    """The bandwidth med^2 / log M (An et al. 2020, appendix B), ``[...]``, of squared distances ``[..., M, M]``."""
    # The lower median over different particles; over those apart where it is 0; h = 1 where none are apart.
    count = squares.shape[-1]
    if count == 1:
        return torch.ones_like(squares[..., 0, 0])
    rows, columns = torch.triu_indices(count, count, 1, device=squares.device)
    between = squares[..., rows, columns]  # each pair once, [..., M (M - 1) / 2]
    median = between.median(dim=-1).values
    # Many medians are slow, and so is reading one from a GPU.
    if squares.dim() == 2 or not on_cpu(squares) or not bool((median > 0).all()):
        apart = between.masked_fill_(between <= 0, torch.nan).nanmedian(dim=-1).values
        median = torch.where(median > 0, median, apart)
    # A squared distance that is subnormal would give an infinite inverse.
    return _usable(median, math.log(count))


def full_median_bandwidth(squares: Tensor) -> Tensor:
    """The bandwidth med^2 / log(M + 1) of squared distances [..., M, M], the median over all M^2 of them."""
    return _usable(squares.flatten(-2).quantile(0.5, dim=-1), math.log(squares.shape[-1] + 1))


def _usable(median: Tensor, logarithm: float) -> Tensor:
    unusable = ~(median > torch.finfo(median.dtype).tiny * 1e3)
    return (median / logarithm).masked_fill_(unusable, 1.0)
