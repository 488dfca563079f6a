"""The directions in which particles move: SVGD, SPOS and SGLD."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probattn.checks import check_instance, check_number
from probattn.particles.distances import checked_pair
from probattn.particles.kernels import ParticleKernel


@torch.no_grad()
def svgd_direction(
    particles: Tensor, grads: Tensor, kernel: ParticleKernel, repulsion: float = 1.0
) -> Tensor:
    r"""Stein variational gradient descent (An et al. 2020, Eq. 4; Liu and Wang 2016).

    .. math::
        \phi_i = \frac1M \sum_{j=1}^M \left[-\kappa(\theta_j, \theta_i) \nabla U(\theta_j)
            + a\, \nabla_{\theta_j} \kappa(\theta_j, \theta_i)\right].

    A step is :math:`\theta_i \leftarrow \theta_i + \epsilon \phi_i`; :math:`-\epsilon \phi_i` as a gradient to descend.

    Args:
        particles: ``[M, N]``, floating.
        grads: ``[M, N]``, the gradient of the potential U at each particle; U is minus the log posterior, up to a
            constant.
        kernel: the kernel; its bandwidth is that of these particles.
        repulsion: a >= 0. At 1 the particles stand for exp(-U), at another value for exp(-U / a). Where U is a mean
            over data instead of a sum, a is to be as much smaller.

    Returns:
        phi ``[M, N]``, at least float32, without gradient. One particle moves along :math:`-\nabla U`, times its kernel
        with itself.

    Raises:
        TypeError: particles are not floating-point, or the kernel is none.
        ValueError: shapes, types or devices do not fit, or a negative repulsion.

    Example:
        >>> from probattn.particles import MedianRBF
        >>> particles = torch.tensor([[-0.1], [0.1]])
        >>> svgd_direction(particles, particles, MedianRBF())  # of N(0, 1): they are too close
        tensor([[-1.7079],
                [ 1.7079]])
        >>> svgd_direction(particles, particles, MedianRBF(), repulsion=0.0)
        tensor([[ 0.0250],
                [-0.0250]])
    """
    check_number("svgd_direction", "repulsion", repulsion, positive=False)
    words = "a kernel of probattn.particles, such as MedianRBF()"
    check_instance("svgd_direction", "kernel", kernel, ParticleKernel, words)
    particles, grads = checked_pair("svgd_direction", particles, grads)
    interaction = kernel.interact(particles, grads)
    total = interaction.attraction
    if repulsion:
        total = total - repulsion * interaction.repulsion
    return -total / particles.shape[0]


@torch.no_grad()
def spos_direction(
    particles: Tensor,
    grads: Tensor,
    kernel: ParticleKernel,
    repulsion: float = 1.0,
    *,
    langevin: float,
    inverse_temperature: float = 1.0,
    step_size: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Stochastic particle-optimisation sampling (An et al. 2020, Eq. 5; Zhang et al. 2020).

    .. math:: \phi_i^{\mathrm{SVGD}} - w \nabla U(\theta_i) + \sqrt{\frac{2 w}{b \epsilon}}\, \xi_i,
        \qquad \xi_i \sim \mathcal N(0, I).

    It is SVGD's direction and w times SGLD's for a step of :math:`w \epsilon`. SGLD's part alone draws from exp(-b U)
    for every w: w is the Langevin share of the particles' movement, which has that variance in any dimension,
    and as w tends to 0 the direction tends to SVGD's. Eq. 5 has b = 1, and writes 1 / b for w.

    Args:
        particles: ``[M, N]``, floating.
        grads: ``[M, N]``, the gradient of the potential U at each particle.
        kernel: as for :func:`svgd_direction`.
        repulsion: as for :func:`svgd_direction`.
        langevin: w > 0.
        inverse_temperature: b > 0.
        step_size: epsilon > 0, the step that will be taken.
        generator: source of the noise, on the particles' device; torch's global one by default.

    Returns:
        ``[M, N]``, at least float32, without gradient.

    Raises:
        TypeError: particles are not floating-point.
        ValueError: shapes, types or devices do not fit, or a number out of its range.

    Example:
        >>> from probattn.particles import MedianRBF
        >>> particles = torch.zeros(4, 1000)
        >>> drawn = spos_direction(particles, particles, MedianRBF(), langevin=0.5, step_size=0.25,
        ...                        generator=torch.Generator().manual_seed(0))
        >>> round(drawn.var().item())  # 2 * 0.5 / 0.25
        4
    """
    check_number("spos_direction", "langevin", langevin, positive=True)
    noise = _noise("spos_direction", particles, inverse_temperature, step_size, generator)
    steered = svgd_direction(particles, grads, kernel, repulsion)
    return steered - langevin * grads.detach().to(steered) + math.sqrt(langevin) * noise


@torch.no_grad()
def sgld_direction(
    particles: Tensor,
    grads: Tensor,
    *,
    inverse_temperature: float,
    step_size: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Stochastic gradient Langevin dynamics, each particle for itself (An et al. 2020, C.1; Welling and Teh 2011).

    .. math:: -\nabla U(\theta_i) + \sqrt{\frac{2}{b \epsilon}}\, \xi_i, \qquad \xi_i \sim \mathcal N(0, I).

    In small steps the particles are draws from exp(-b U).

    Args:
        particles: ``[M, N]``, floating.
        grads: ``[M, N]``, the gradient of the potential U at each particle.
        inverse_temperature: b > 0.
        step_size: epsilon > 0, the step that will be taken.
        generator: source of the noise, on the particles' device; torch's global one by default.

    Returns:
        ``[M, N]``, at least float32, without gradient.

    Raises:
        TypeError: particles are not floating-point.
        ValueError: shapes, types or devices do not fit, or a number out of its range.

    Example:
        >>> particles = torch.zeros(4, 1000)
        >>> drawn = sgld_direction(particles, particles + 10.0, inverse_temperature=0.5, step_size=0.04,
        ...                        generator=torch.Generator().manual_seed(0))
        >>> round(drawn.mean().item()), round(drawn.std().item())  # the square root of 2 / (0.5 * 0.04) is 10
        (-10, 10)
    """
    noise = _noise("sgld_direction", particles, inverse_temperature, step_size, generator)
    _, grads = checked_pair("sgld_direction", particles, grads)
    return noise - grads


def _noise(
    owner: str,
    particles: Tensor,
    inverse_temperature: float,
    step_size: float,
    generator: torch.Generator | None,
) -> Tensor:
    """Noise of variance 2 / (b epsilon), like the particles in shape."""
    check_number(owner, "inverse_temperature", inverse_temperature, positive=True)
    check_number(owner, "step_size", step_size, positive=True)
    dtype = torch.float32 if particles.dtype in (torch.float16, torch.bfloat16) else particles.dtype
    noise = torch.randn(particles.shape, dtype=dtype, device=particles.device, generator=generator)
    return noise * math.sqrt(2 / (inverse_temperature * step_size))
