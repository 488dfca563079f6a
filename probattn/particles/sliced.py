"""Gaussian kernels along random directions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.checks import checked_pair
from probattn.particles.kernel import Interaction, ParticleKernel
from probattn.particles.marginal import MarginalRBF
from probattn.particles.whitening import whiten

DENSE = 128
"""Most dimensions for a rotation by a matrix; more of them are rotated by a fast transform."""


class Rotation(NamedTuple):
    """An orthogonal map of N dimensions: a matrix ``[N, N]``, or signs ``[N]`` before Hartley's transform."""

    matrix: Tensor | None
    signs: Tensor | None

    def forward(self, rows: Tensor) -> Tensor:
        """Coordinates ``[M, N]`` of rows ``[M, N]`` along the axes."""
        if self.matrix is not None:
            return rows @ self.matrix
        assert self.signs is not None
        return _hartley(rows * self.signs)

    def backward(self, coordinates: Tensor) -> Tensor:
        """Rows ``[M, N]`` that have these coordinates."""
        if self.matrix is not None:
            return coordinates @ self.matrix.T
        assert self.signs is not None
        return _hartley(coordinates) * self.signs


def draw_rotation(size: int, like: Tensor, generator: torch.Generator | None) -> Rotation:
    """A random rotation.

    For few dimensions it has Haar's distribution, up to the signs of axes. For more it is random signs and Hartley's
    transform, whose axes have parts of like size in every dimension, in time N log N.
    """
    if size <= DENSE:
        normal = torch.randn(size, size, dtype=like.dtype, device=like.device, generator=generator)
        return Rotation(torch.linalg.qr(normal)[0], None)
    bits = torch.randint(0, 2, (size,), device=like.device, generator=generator)
    return Rotation(None, (2 * bits - 1).to(like.dtype))


class SlicedRBF(ParticleKernel):
    r"""One Gaussian kernel along each of N random orthogonal directions, drawn anew in every call.

    .. math::
        K(x, y) = \sum_{d=1}^N \exp\left(-\frac{(r_d^\top A^{-1} (x - y))^2}{h_d}\right) A r_d r_d^\top A, \qquad
        h_d = s\, \frac{\mathrm{med}_d^2}{\log M},

    a matrix-valued kernel (Wang et al. 2019) of slices (Gong et al. 2021). A is the root of the particles' covariance,
    shrunk towards the identity where they are few, and counts as a constant: without it wide directions grow too wide.
    :class:`MarginalRBF` sees each dimension alone and cannot tell a correlated posterior from a mean-field
    approximation of it; over all directions, only the posterior's own covariance leaves a Gaussian's particles at rest.
    New directions make noise from step to step: let the step size fall.

    With few particles of a posterior that is much wider in some directions than in others, the wide ones grow too wide:
    12 particles of a Gaussian in 50 dimensions whose correlations are 0.9 have nearly twice its variance.

    The bandwidth is wider than elsewhere. In a random slice few particles lie beside each other; with the median's own
    they keep less of the variance.

    Time O(M^2 N + M N log N), memory O(M N). It has no number for each pair and dimension, so Pyro's engine cannot
    take it.

    Args:
        scale: s > 0, the multiple of the median's bandwidth. Larger ones match the covariance more closely, and other
            features of a posterior less.
        generator: source of the directions, on the particles' device; torch's global one by default.

    Raises:
        ValueError: a scale that is not positive.

    Example:
        >>> kernel = SlicedRBF(generator=torch.Generator().manual_seed(0))
        >>> particles = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> pull, push, bandwidth = kernel.interact(particles, torch.ones(2, 2))
        >>> torch.allclose(pull, torch.full((2, 2), 1 + 0.5**0.25))  # two particles: exp(-log(2) / 4), by slice
        True
    """

    def __init__(self, scale: float = 4.0, generator: torch.Generator | None = None) -> None:
        check_number("SlicedRBF", "scale", scale, positive=True)
        self.marginal = MarginalRBF(scale=scale)
        self.generator = generator

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion along new directions; the bandwidths are theirs."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        with torch.autocast(particles.device.type, enabled=False):
            root = whiten(particles)
            rotation = draw_rotation(particles.shape[1], particles, self.generator)
            found = self.marginal.interact(
                rotation.forward(root.invert(particles)), rotation.forward(root.apply(grads))
            )
            attraction, repulsion = (
                root.apply(rotation.backward(part)) for part in (found.attraction, found.repulsion)
            )
            return Interaction(attraction, repulsion, found.bandwidth)


def _hartley(rows: Tensor) -> Tensor:
    """Hartley's transform ``[M, N]``, orthogonal and its own inverse, in any number of dimensions."""
    spectrum = torch.fft.fft(rows, norm="ortho")
    return spectrum.real - spectrum.imag
