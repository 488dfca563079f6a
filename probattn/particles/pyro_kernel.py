"""Kernels written for Pyro's engine, in the directions of this package."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.particles.checks import checked_pair
from probattn.particles.kernel import Interaction, ParticleKernel

Mode = Literal["multivariate", "univariate"]


class PyroKernel(ParticleKernel, SteinKernel):
    """A kernel that has Pyro's ``[M, M, N]`` form only, as :class:`pyro.infer.SVGD` would use it.

    Args:
        kernel: such a kernel, for example ``pyro.infer.RBFSteinKernel()``.
        mode: what Pyro's engine makes of it: the product of its dimensions, or one kernel per dimension.

    Raises:
        TypeError: not a kernel of Pyro's.
        ValueError: an unknown mode.

    Example:
        >>> from pyro.infer import RBFSteinKernel
        >>> kernel = PyroKernel(RBFSteinKernel(), "univariate")
        >>> kernel.interact(torch.tensor([[0.0], [3.0]]), torch.ones(2, 1)).attraction  # 1 + exp(-log 3)
        tensor([[1.3333],
                [1.3333]])
    """

    def __init__(self, kernel: SteinKernel, mode: Mode = "multivariate") -> None:
        if not isinstance(kernel, SteinKernel):
            raise TypeError(
                f"PyroKernel: expected a pyro.infer.svgd.SteinKernel, got {type(kernel).__name__}"
            )
        if mode not in get_args(Mode):
            raise ValueError(f"PyroKernel: expected mode 'multivariate' or 'univariate', got {mode!r}")
        self.kernel = kernel
        self.mode = mode

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """What the engine computes of the kernel; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        log_kernel, gradient = self.log_kernel_and_grad(particles)
        if self.mode == "univariate":
            kernel = log_kernel.exp()
            return Interaction(
                torch.einsum("ijn,jn->in", kernel, grads),
                -torch.einsum("ijn,ijn->in", kernel, gradient),
                None,
            )
        kernel = log_kernel.sum(dim=-1).exp()
        return Interaction(kernel @ grads, -torch.einsum("ij,ijn->in", kernel, gradient), None)

    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """What the kernel itself gives, ``[M, M, N]`` each."""
        return self.kernel.log_kernel_and_grad(particles)
