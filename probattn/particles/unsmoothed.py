"""A kernel that repels and does not mix gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from probattn.particles.checks import checked_pair
from probattn.particles.kernel import Interaction, ParticleKernel


class UnsmoothedKernel(ParticleKernel):
    r"""The repulsion of another kernel, while each particle follows its own gradient alone.

    .. math:: \phi_i = -\nabla U(\theta_i) + \frac aM \sum_{j=1}^M \nabla_{\theta_j} \kappa(\theta_j, \theta_i)

    This is Stein variational gradient descent without the smoothing of gradients over particles (An et al. 2020,
    section C.6 and Table 9), and without a posterior that it would sample. The attraction is M times the gradient, so
    that :func:`~probattn.particles.svgd_direction`, which divides by M, leaves the gradient whole.

    Args:
        kernel: whose repulsion.

    Example:
        >>> from probattn.particles import CosineKernel, svgd_direction
        >>> particles, grads = torch.eye(2), torch.ones(2, 2)
        >>> svgd_direction(particles, grads, UnsmoothedKernel(CosineKernel()), repulsion=0.0)
        tensor([[-1., -1.],
                [-1., -1.]])
    """

    def __init__(self, kernel: ParticleKernel) -> None:
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kernel!r})"

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion of all particles; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        found = self.kernel.interact(particles, grads)
        return Interaction(len(particles) * grads, found.repulsion, found.bandwidth)
