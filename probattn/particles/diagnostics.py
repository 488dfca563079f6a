"""Diagnostics of particles: their share of the posterior's variance, and collapse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.distances import centre, checked_pair, squared_distances
from probattn.particles.kernels import ParticleKernel


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
        """Why these particles count as collapsed.

        It looks for too little variance. None does not mean that there is not too much: few particles under
        :class:`probattn.particles.SlicedRBF` have up to twice the variance of a strongly correlated posterior.

        Args:
            least_distance: two particles coincide where their distance, over a particle's length, is at most this.
            least_spread: share of the posterior's variance below which the ensemble is no picture of it. 0 leaves this
                out, as for heads during training, which are far from any equilibrium.

        Returns:
            A line for a warning, or None where they have not.

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
    """Measures particles where they stand.

    Args:
        particles: ``[M, N]``, floating.
        grads: ``[M, N]``, the gradient of the potential U at each particle.
        kernel: the kernel in use.
        repulsion: the repulsive weight in use, >= 0.

    Returns:
        The measures, as numbers.

    Raises:
        TypeError: particles are not floating-point.
        ValueError: shapes, types or devices do not fit.

    Example:
        >>> from probattn.particles import MedianRBF
        >>> particles = torch.tensor([[0.0], [3.0], [4.0]])
        >>> diagnose(particles, particles, MedianRBF()).smallest_distance
        1.0
    """
    particles, grads = checked_pair("diagnose", particles, grads)
    interaction = kernel.interact(particles, grads)
    pull, push = (
        float(torch.linalg.vector_norm(term)) for term in (interaction.attraction, interaction.repulsion)
    )
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

    Args:
        particles: ``[M, N]``, M >= 2.
        grads: ``[M, N]``, the gradient of the potential U at each particle.
        repulsion: a > 0, the weight that the particles' direction has.

    Returns:
        ``[]``.

    Raises:
        TypeError: particles are not floating-point.
        ValueError: one particle alone, a repulsion that is not positive, or shapes, types or devices that do not fit.

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
