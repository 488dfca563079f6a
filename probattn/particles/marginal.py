"""One Gaussian kernel per dimension."""

from __future__ import annotations

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.checks import checked_pair, checked_particles
from probattn.particles.distances import median_bandwidth
from probattn.particles.kernel import Interaction, ParticleKernel

BLOCK = 2**20
"""Largest number of pairwise differences that stand in memory at once."""


class MarginalRBF(ParticleKernel, SteinKernel):
    r"""One Gaussian kernel per dimension, each with its own median bandwidth (Singhal et al. 2019).

    .. math::
        \kappa_d(x, y) = \exp\left(-\frac{(x_d - y_d)^2}{h_d}\right), \qquad h_d = \frac{\mathrm{med}_d^2}{\log M}.

    It keeps the variance of independent dimensions whatever their number, and loses correlations: few particles of a
    correlated posterior end up as under a mean-field approximation. Time O(M^2 N); dimensions are taken in blocks, so
    that memory is O(M N). In Pyro's engine it serves ``mode="univariate"``.

    Args:
        bandwidth: a fixed h > 0 for every dimension, in place of the medians'.
        scale: a factor > 0 by which to widen every bandwidth.

    Raises:
        ValueError: a bandwidth or a scale that is not positive.

    Example:
        >>> particles = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> MarginalRBF().interact(particles, torch.eye(2)).bandwidth.round(decimals=3)  # 9 / log 2, 16 / log 2
        tensor([12.9840, 23.0830])
    """

    def __init__(self, bandwidth: float | None = None, scale: float = 1.0) -> None:
        check_number(type(self).__name__, "scale", scale, positive=True)
        if bandwidth is not None:
            check_number(type(self).__name__, "bandwidth", bandwidth, positive=True)
        self.bandwidth = bandwidth
        self.scale = scale

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion, dimension by dimension; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        count, size = particles.shape
        attraction, repulsion = torch.empty_like(grads), torch.empty_like(particles)
        bandwidth = particles.new_empty(size)
        step = max(1, BLOCK // count**2)
        for start in range(0, size, step):
            part = slice(start, start + step)
            difference, width = self._differences(particles[:, part])
            kernel = torch.exp(-difference.square() / width)  # [M, M, n]
            attraction[:, part] = torch.einsum("ijn,jn->in", kernel, grads[:, part])
            repulsion[:, part] = 2 / width * (kernel * difference).sum(dim=1)
            bandwidth[part] = width
        return Interaction(attraction, repulsion, bandwidth)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        r"""Pyro's form, for ``mode="univariate"``.

        Args:
            particles: ``[M, N]``.

        Returns:
            Two arrays ``[M, M, N]``: :math:`\log \kappa_d(\theta_n, \theta_m)`, and
            :math:`-\partial_{\theta_{md}} \log \kappa_d(\theta_n, \theta_m)`, whose sign is that of Pyro's own kernels.
        """
        particles = checked_particles(type(self).__name__, particles)
        difference, width = self._differences(particles)
        return -difference.square() / width, -2 * difference / width

    def _differences(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Row i minus row j ``[M, M, n]`` and the bandwidths ``[n]``."""
        difference = particles.unsqueeze(1) - particles.unsqueeze(0)
        if self.bandwidth is not None:
            return difference, particles.new_full((particles.shape[1],), self.scale * self.bandwidth)
        return difference, self.scale * median_bandwidth(difference.square())
