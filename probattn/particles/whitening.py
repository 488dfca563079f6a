"""Coordinates in which particles have about the same variance in every direction."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.particles.distances import centre

LEAST = 1e-3
"""Least share of the mean variance that a direction is given."""


class Whitening(NamedTuple):
    r"""The root of a covariance, :math:`A = \sqrt{w} I + \sum_k (\sqrt{w_k} - \sqrt w)\, v_k v_k^\top`.

    Attributes:
        axes: orthonormal rows v ``[K, N]``, K at most M.
        roots: the roots of :math:`w_k` ``[K]``.
        rest: the root of w ``[]``, for what is orthogonal to the axes.
    """

    axes: Tensor
    roots: Tensor
    rest: Tensor

    def apply(self, rows: Tensor) -> Tensor:
        """Rows ``[M, N]`` times A."""
        return self._scaled(rows, self.roots, self.rest)

    def invert(self, rows: Tensor) -> Tensor:
        """Rows ``[M, N]`` times the inverse of A."""
        return self._scaled(rows, 1 / self.roots, 1 / self.rest)

    def _scaled(self, rows: Tensor, roots: Tensor, rest: Tensor) -> Tensor:
        return rest * rows + ((rows @ self.axes.T) * (roots - rest)) @ self.axes


def whiten(particles: Tensor) -> Whitening:
    r"""The root of the particles' covariance, shrunk towards a multiple of the identity and over its mean variance.

    The shrinkage is the oracle-approximating one (Chen et al. 2010, in scikit-learn's form). Of few particles in many
    dimensions it leaves little more than the largest directions. Only ``[M, M]`` and ``[M, N]`` matrices are made.

    Args:
        particles: ``[M, N]``; particles in one place have the identity.
    """
    count, size = particles.shape
    centred = centre(particles)
    values, vectors = torch.linalg.eigh(centred @ centred.T / count)
    eps = torch.finfo(particles.dtype).eps
    floor = (8 * eps) ** 2 * particles.square().sum(dim=-1).max() + torch.finfo(particles.dtype).tiny
    kept = values > torch.maximum(values.max() * size * eps, floor)
    values, vectors = values[kept], vectors[:, kept]
    if not values.numel():
        one = particles.new_ones(())
        return Whitening(particles.new_empty(0, size), particles.new_empty(0), one)
    axes = (vectors / (count * values).sqrt()).T @ centred
    trace, squares = values.sum(), values.square().sum()
    mean = trace / size
    apart = (squares - trace**2 / size).clamp_min(eps * squares)
    share = (squares + trace**2) / ((count + 1) * apart)
    share = share.clamp(LEAST, 1.0)
    return Whitening(axes, ((1 - share) * values / mean + share).sqrt(), share.sqrt())
