"""Checks of particles and of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def checked_particles(owner: str, particles: Tensor) -> Tensor:
    """The particles without gradient history, at least in float32.

    Raises:
        TypeError: they are not floating-point.
        ValueError: they are not a matrix, or there is none.
    """
    if particles.dim() != 2 or not particles.shape[0]:
        raise ValueError(
            f"{owner}: expected particles [M, N], one row each and M >= 1, got shape {list(particles.shape)}"
        )
    if not particles.is_floating_point():
        raise TypeError(f"{owner}: expected floating-point particles, got {particles.dtype}")
    particles = particles.detach()
    return particles.float() if particles.dtype in (torch.float16, torch.bfloat16) else particles


def checked_pair(owner: str, particles: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Particles and gradients, checked and without gradient history, at least in float32.

    Raises:
        TypeError: either is not floating-point.
        ValueError: particles are not a matrix, or the gradients have another shape, type or device.
    """
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
