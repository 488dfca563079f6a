"""The directions in which particles move, SVGD, SPOS and SGLD, and diagnostics: share of the variance, collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from probattn.checks import check_instance, check_number
from probattn.particles.distances import centre, checked_pair, squared_distances
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
        particles: ``[M, N]``, floating; several sets at once ``[..., M, N]`` under a kernel that takes sets.
        grads: of the same shape, the gradient of the potential U at each particle; U is minus the log posterior, up to
            a constant.
        kernel: the kernel; its bandwidth is that of these particles.
        repulsion: a >= 0. At 1 the particles stand for exp(-U), at another value for exp(-U / a). Where U is a mean
            over data instead of a sum, a is to be as much smaller.

    Returns:
        phi, of the particles' shape, at least float32, without gradient. One particle moves along
        :math:`-\nabla U`, times its kernel with itself.

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
    particles, grads = checked_pair("svgd_direction", particles, grads, sets=kernel.takes_sets)
    interaction = kernel.interact(particles, grads)
    total = interaction.attraction
    if repulsion:
        total = torch.sub(total, interaction.repulsion, alpha=repulsion)
    return total / -particles.shape[-2]


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
    generator: Generator | None = None,
) -> Tensor:
    r"""Stochastic particle-optimisation sampling (An et al. 2020, Eq. 5; Zhang et al. 2020).

    .. math:: \phi_i^{\mathrm{SVGD}} - w \nabla U(\theta_i) + \sqrt{\frac{2 w}{b \epsilon}}\, \xi_i,
        \qquad \xi_i \sim \mathcal N(0, I).

    It is SVGD's direction and w times SGLD's for a step of :math:`w \epsilon`. SGLD's part alone draws from exp(-b U)
    for every w: w is the Langevin share of the particles' movement, which has that variance in any dimension,
    and as w tends to 0 the direction tends to SVGD's. Eq. 5 has b = 1, and writes 1 / b for w.

    ``langevin`` is w > 0, ``inverse_temperature`` b > 0, ``step_size`` :math:`\epsilon > 0`, the step that will be
    taken, and ``generator`` the source of the noise, on the particles' device, torch's global one by default. The other
    arguments and the result ``[M, N]`` are those of :func:`svgd_direction`. A kernel that is none raises ``TypeError``;
    shapes, types or devices that do not fit, or a ``repulsion``, ``langevin``, ``inverse_temperature`` or ``step_size``
    out of its range, raise ``ValueError``.

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
    generator: Generator | None = None,
) -> Tensor:
    r"""Stochastic gradient Langevin dynamics, each particle for itself (An et al. 2020, C.1; Welling and Teh 2011).

    .. math:: -\nabla U(\theta_i) + \sqrt{\frac{2}{b \epsilon}}\, \xi_i, \qquad \xi_i \sim \mathcal N(0, I).

    In small steps the particles are draws from exp(-b U).

    ``particles``, ``grads`` and the result ``[M, N]`` are those of :func:`svgd_direction`, the others those of
    :func:`spos_direction`. Shapes, types or devices that do not fit, or a number not above 0, raise ``ValueError``.

    Example:
        >>> particles = torch.zeros(4, 1000)
        >>> drawn = sgld_direction(particles, particles + 10.0, inverse_temperature=0.5, step_size=0.04,
        ...                        generator=torch.Generator().manual_seed(0))
        >>> round(drawn.mean().item()), round(drawn.std().item())  # the square root of 2 / (0.5 * 0.04) is 10
        (-10, 10)
    """
    _, grads = checked_pair("sgld_direction", particles, grads, sets=True)
    return _noise("sgld_direction", particles, inverse_temperature, step_size, generator) - grads


def _noise(
    owner: str, particles: Tensor, inverse_temperature: float, step_size: float, generator: Generator | None
) -> Tensor:
    """Noise of variance 2 / (b epsilon), like the particles in shape."""
    check_number(owner, "inverse_temperature", inverse_temperature, positive=True)
    check_number(owner, "step_size", step_size, positive=True)
    dtype = torch.float32 if particles.dtype in (torch.float16, torch.bfloat16) else particles.dtype
    noise = torch.randn(particles.shape, dtype=dtype, device=particles.device, generator=generator)
    return noise * math.sqrt(2 / (inverse_temperature * step_size))


class CollapseWarning(UserWarning):
    """Particles have collapsed; a driver warns with it."""


@dataclass(frozen=True)
class ParticleDiagnostics:
    """Diagnostics of M particles of N dimensions, by :func:`diagnose`.

    Attributes:
        bandwidth: of the kernel, the median over dimensions where each has its own; None for a kernel without.
        repulsion_ratio: root mean square of the repulsive term over that of the attractive one, as they enter the
            direction; None where nothing attracts.
        smallest_distance: between two particles; None for one particle.
        relative_distance: the same over the root mean square length of a particle; None where that is 0 too.
        spread: how much of the posterior's variance the particles have, by :func:`spread`; None for one particle or
            without repulsion.
    """

    bandwidth: float | None
    repulsion_ratio: float | None
    smallest_distance: float | None
    relative_distance: float | None
    spread: float | None

    def collapse(self, least_distance: float = 1e-5, least_spread: float = 0.3) -> str | None:
        """Why these particles count as collapsed, a line for a warning; None where they do not.

        It looks for too little variance. None does not mean that there is not too much: few particles under
        :class:`probattn.particles.SlicedRBF` have up to twice the variance of a strongly correlated posterior.

        Args:
            least_distance: two particles coincide where their distance, over a particle's length, is at most this.
            least_spread: share of the posterior's variance below which the ensemble is no picture of it. 0 leaves this
                out, as for heads during training, which are far from any equilibrium.

        Example:
            >>> particles = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
            >>> from probattn.particles import MedianRBF
            >>> diagnose(particles, particles, MedianRBF()).collapse()
            'two particles coincide: the smallest distance is 0'
        """
        if self.smallest_distance is not None and (self.relative_distance or 0.0) <= least_distance:
            return f"two particles coincide: the smallest distance is {self.smallest_distance:.3g}"
        if self.spread is not None and least_spread > 0 and self.spread < least_spread:
            return (
                f"particles have collapsed: they have {self.spread:.3g} of the posterior's variance, less than "
                f"{least_spread:g}; another kernel or SPOS keeps more of it"
            )
        return None


@torch.no_grad()
def diagnose(
    particles: Tensor, grads: Tensor, kernel: ParticleKernel, repulsion: float = 1.0
) -> ParticleDiagnostics:
    """Measures particles where they stand, as numbers; arguments and errors are those of :func:`svgd_direction`.

    Example:
        >>> from probattn.particles import MedianRBF
        >>> particles = torch.tensor([[0.0], [3.0], [4.0]])
        >>> diagnose(particles, particles, MedianRBF()).smallest_distance
        1.0
    """
    particles, grads = checked_pair("diagnose", particles, grads)
    interaction = kernel.interact(particles, grads)
    pull, push = (float(torch.linalg.vector_norm(term)) for term in interaction[:2])
    distance = _smallest_distance(particles)
    length = float(particles.square().sum(dim=-1).mean().sqrt())
    several = particles.shape[0] > 1
    return ParticleDiagnostics(
        bandwidth=None if interaction.bandwidth is None else float(interaction.bandwidth.median()),
        repulsion_ratio=repulsion * push / pull if pull > 0 else None,
        smallest_distance=distance,
        relative_distance=None if distance is None or length == 0 else distance / length,
        spread=float(spread(particles, grads, repulsion)) if several and repulsion > 0 else None,
    )


@torch.no_grad()
def spread(particles: Tensor, grads: Tensor, repulsion: float = 1.0) -> Tensor:
    r"""Share of the posterior's variance that the particles have, from Stein's identity.

    Under :math:`p \propto \exp(-U / a)`, integration by parts gives
    :math:`\mathbb E\,(\theta - m)^\top \nabla U(\theta) = a N` for any m. The same mean over the particles, around
    theirs and without the bias of that, is

    .. math::
        \frac{1}{a N (M - 1)} \sum_{i=1}^M
            (\theta_i - \bar\theta)^\top \left(\nabla U(\theta_i) - \overline{\nabla U}\right).

    For :math:`\mathcal N(0, \sigma^2 I)` it is the particles' variance over :math:`\sigma^2`; for independent draws of
    any posterior it is 1 on average. It needs no draw of the posterior and knows no kernel. It is a mean over
    directions, each measured by the posterior's own variance there. What it does not see: correlations that are lost
    while the variance given the other dimensions stays, and a wrong variance of few directions, however wide.

    Arguments and errors are those of :func:`svgd_direction`, with M >= 2 and a > 0, the weight that the particles'
    direction has; the result is a number, ``[]``.

    Example:
        >>> particles = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
        >>> spread(particles, particles / 4)  # of N(0, 4 I)
        tensor(0.2500)
    """
    check_number("spread", "repulsion", repulsion, positive=True)
    particles, grads = checked_pair("spread", particles, grads)
    count, size = particles.shape
    if count < 2:
        raise ValueError("spread: expected at least 2 particles, got 1")
    return (centre(particles) * centre(grads)).sum() / (repulsion * size * (count - 1))


def _smallest_distance(particles: Tensor) -> float | None:
    """The matrix product finds the pair, its difference the distance: the product alone has half the digits."""
    count = particles.shape[0]
    if count == 1:
        return None
    squares = squared_distances(particles).fill_diagonal_(torch.inf)
    row, column = divmod(int(squares.argmin()), count)
    return float(torch.linalg.vector_norm(particles[row] - particles[column]))
