"""What a kernel between particles is, here and where Pyro takes a ``SteinKernel``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.particles.checks import checked_pair, checked_particles

SMALLEST = 1e-30
"""A kernel of 0 has no logarithm: in Pyro's form it is this, and its gradient is kept."""


class Interaction(NamedTuple):
    r"""What M particles do to each other.

    Attributes:
        attraction: ``[M, N]``, row i :math:`\sum_j \kappa(\theta_j, \theta_i) \nabla U(\theta_j)`.
        repulsion: ``[M, N]``, row i :math:`\sum_j \nabla_{\theta_j} \kappa(\theta_j, \theta_i)`.
        bandwidth: ``[]``, or ``[N]`` for one kernel per dimension; None for a kernel that has none.
    """

    attraction: Tensor
    repulsion: Tensor
    bandwidth: Tensor | None


class ParticleKernel(ABC):
    """What lets particles ``[M, N]`` attract and repel each other.

    :meth:`interact` serves the directions of this package without an ``[M, M, N]`` array. Kernels of a number for each
    pair, or for each pair and dimension, are Pyro's ``SteinKernel`` too and can be handed to :class:`pyro.infer.SVGD`;
    the ``mode`` of its engine that gives the same direction stands with each. The bandwidth counts as a constant in
    every gradient.
    """

    @abstractmethod
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion of all particles at once.

        Args:
            particles: ``[M, N]``, floating; computed at least in float32, without gradient.
            grads: ``[M, N]``, gradient of the potential at each particle.

        Returns:
            Both terms and the bandwidth.

        Raises:
            TypeError: particles are not floating-point.
            ValueError: shapes, types or devices do not fit.
        """


class Coefficients(NamedTuple):
    r"""A kernel of whole vectors: all of it is in ``[M, M]`` matrices, row i and column j.

    Attributes:
        values: :math:`\kappa(\theta_j, \theta_i)`.
        other: :math:`A_{ij}` of the gradient, :math:`\nabla_{\theta_j} \kappa(\theta_j, \theta_i) = A_{ij} x_j +
            B_{ij} x_i`.
        own: :math:`B_{ij}`.
        origin: the particles ``[M, N]`` as the gradient sees them: :math:`x_i`.
        bandwidth: ``[]``, or None.
    """

    values: Tensor
    other: Tensor
    own: Tensor
    origin: Tensor
    bandwidth: Tensor | None


class WholeVectorKernel(ParticleKernel, SteinKernel):
    """A kernel of the distance or the product of whole vectors: time O(M^2 N), memory O(M^2 + M N).

    In Pyro's engine it serves ``mode="multivariate"``, where ``log_kernel`` is summed over dimensions: each holds an
    equal share of it.
    """

    @abstractmethod
    def coefficients(self, particles: Tensor) -> Coefficients:
        """The kernel and its gradient between all particles ``[M, N]``, which are checked already."""

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion by two matrix products; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        with torch.autocast(particles.device.type, enabled=False):
            found = self.coefficients(particles)
            repulsion = found.other @ found.origin + found.own.sum(dim=1, keepdim=True) * found.origin
            return Interaction(found.values @ grads, repulsion, found.bandwidth)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        r"""Pyro's form, for ``mode="multivariate"``.

        Args:
            particles: ``[M, N]``.

        Returns:
            Two arrays ``[M, M, N]``: :math:`\log \kappa(\theta_n, \theta_m) / N` in every dimension, and
            :math:`-\nabla_{\theta_m} \log \kappa(\theta_n, \theta_m)`, whose sign is that of Pyro's own kernels.

        Raises:
            ValueError: the kernel is negative somewhere, so that it has no logarithm.
        """
        name = type(self).__name__
        particles = checked_particles(name, particles)
        found = self.coefficients(particles)
        if bool((found.values < -torch.finfo(particles.dtype).eps * found.values.abs().max()).any()):
            raise ValueError(
                f"{name}: Pyro's engine takes the logarithm of a kernel, and this one falls to "
                f"{found.values.min().item():.3g}; raise its offset"
            )
        values = found.values.clamp_min(SMALLEST)
        x = found.origin
        gradient = found.other.unsqueeze(-1) * x + found.own.unsqueeze(-1) * x.unsqueeze(1)  # [M, M, N]
        share = values.log() / particles.shape[1]
        return share.unsqueeze(-1).expand_as(gradient), -gradient / values.unsqueeze(-1)
