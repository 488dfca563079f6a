"""Kernels of the product of whole vectors, and the kernel that parts all particles."""

from __future__ import annotations

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.checks import checked_pair, checked_particles
from probattn.particles.distances import centre
from probattn.particles.kernel import Coefficients, Interaction, ParticleKernel, WholeVectorKernel


class LinearKernel(WholeVectorKernel):
    r"""The linear kernel around the particles' mean.

    .. math:: \kappa(x, y) = c + \frac{(x - \bar x)^\top (y - \bar x)}{h}.

    For a Gaussian posterior and more particles than dimensions, the directions vanish at its mean and covariance
    exactly (Liu and Wang 2018); it knows nothing of further moments. With fewer particles, the variance is right in the
    directions that they span and 0 in the others. The mean of the particles counts as a constant.

    Args:
        offset: c >= 0.
        bandwidth: a fixed h > 0, in units of a squared distance; None for the largest squared distance of a particle
            from the mean, with which the product lies between -1 and 1, and 1 for particles in one place.

    Raises:
        ValueError: a bandwidth that is not positive, or a negative offset.

    Example:
        >>> particles = torch.tensor([[-2.0], [0.0], [2.0]])
        >>> LinearKernel().interact(particles, particles).attraction
        tensor([[-4.],
                [ 0.],
                [ 4.]])
    """

    def __init__(self, offset: float = 1.0, bandwidth: float | None = None) -> None:
        check_number(type(self).__name__, "offset", offset, positive=False)
        if bandwidth is not None:
            check_number(type(self).__name__, "bandwidth", bandwidth, positive=True)
        self.offset = offset
        self.bandwidth = bandwidth

    def coefficients(self, particles: Tensor) -> Coefficients:
        """See :class:`WholeVectorKernel`; the gradient is the other particle over h."""
        centred = centre(particles)
        if self.bandwidth is None:
            largest = centred.square().sum(dim=-1).max()
            eps = torch.finfo(particles.dtype).eps
            resolution = (8 * eps) ** 2 * particles.square().sum(dim=-1).max()
            width = torch.where(largest > resolution.clamp_min(torch.finfo(largest.dtype).tiny), largest, 1.0)
        else:
            width = centred.new_tensor(self.bandwidth)
        product = (centred @ centred.T) / width
        own = torch.ones_like(product) / width
        return Coefficients(self.offset + product, torch.zeros_like(own), own, centred, width)


class CosineKernel(WholeVectorKernel):
    r"""The cosine between two particles (An et al. 2020, appendix C.6, with offset 0).

    .. math:: \kappa(x, y) = c + \frac{x^\top y}{|x|\,|y|}.

    It sees directions and no lengths. Its push, the part of a particle that is orthogonal to another one, also makes
    the particle longer. A particle of length 0 has the cosine 0 with every other.

    Args:
        offset: c >= 0; from 1 on the kernel is nowhere negative, as Pyro's engine wants it.

    Raises:
        ValueError: a negative offset.

    Example:
        >>> particles = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
        >>> CosineKernel().interact(particles, torch.eye(2)).attraction
        tensor([[2., 1.],
                [1., 2.]])
    """

    def __init__(self, offset: float = 1.0) -> None:
        check_number(type(self).__name__, "offset", offset, positive=False)
        self.offset = offset

    def coefficients(self, particles: Tensor) -> Coefficients:
        """See :class:`WholeVectorKernel`."""
        norms = torch.linalg.vector_norm(particles, dim=-1, keepdim=True)  # [M, 1]
        inverse = torch.where(norms > torch.finfo(norms.dtype).tiny, 1 / norms, 0.0)
        units = particles * inverse
        cosine = units @ units.T
        # Along units: the gradient is (unit_i - cosine unit_j) / |theta_j|.
        own = inverse.T.expand_as(cosine)
        return Coefficients(self.offset + cosine, -cosine * inverse.T, own, units, None)


class IdentityKernel(ParticleKernel, SteinKernel):
    r"""The kernel that is 1 between a particle and itself and 0 otherwise: particles do not see each other.

    SVGD's direction is then :math:`-\nabla U(\theta_i) / M`, and a step of size M plain gradient descent. In Pyro's
    engine it serves both modes.

    Example:
        >>> IdentityKernel().interact(torch.randn(3, 2), torch.ones(3, 2)).attraction
        tensor([[1., 1.],
                [1., 1.],
                [1., 1.]])
    """

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """The gradients, and no repulsion; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        return Interaction(grads, torch.zeros_like(particles), None)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Pyro's form ``[M, M, N]``: 0 on the diagonal and minus infinity elsewhere, and no gradient."""
        particles = checked_particles(type(self).__name__, particles)
        count, size = particles.shape
        same = torch.eye(count, dtype=torch.bool, device=particles.device).unsqueeze(-1)
        log_kernel = particles.new_full((count, count, size), -torch.inf).masked_fill(same, 0.0)
        return log_kernel, torch.zeros_like(log_kernel)
