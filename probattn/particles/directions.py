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

    A step of size :math:`\epsilon` is :math:`\theta_i \leftarrow \theta_i + \epsilon \phi_i`.

    Args:
        particles: :math:`\theta`, ``[M, N]``, floating-point; several sets at once, ``[..., M, N]``, if
            ``kernel.takes_sets``.
        grads: of the same shape, the gradient of the potential U at each particle; U is minus the log posterior, up to
            a constant.
        kernel: :math:`\kappa`; a bandwidth that is not fixed is computed from these particles.
        repulsion: a >= 0. For a > 0 the particles approximate the density exp(-U / a). If U is the mean over n data
            instead of the sum, a = 1 / n gives the posterior.

    Returns:
        phi, of the particles' shape, at least float32, without gradient.

    Raises:
        TypeError: the particles are not floating-point, or ``kernel`` is not a :class:`ParticleKernel`.
        ValueError: shapes, dtypes or devices differ, or ``repulsion`` is negative.

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

    The direction is the sum of SVGD's direction and w times SGLD's direction for steps of size :math:`w \epsilon`. In
    small steps the SGLD term alone samples exp(-b U) for every w > 0, in any dimension. As w tends to 0 the direction
    tends to SVGD's. Eq. 5 of the paper is the case b = 1, with :math:`\beta^{-1}` for w.

    ``langevin`` is w > 0, ``inverse_temperature`` is b > 0, ``step_size`` is :math:`\epsilon > 0`, the size of the step
    that the caller will take, and ``generator`` draws the noise on the particles' device (default: torch's global one).
    A number outside its range raises ``ValueError``. The other arguments and errors, and the result ``[M, N]``, are
    those of :func:`svgd_direction`.

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
    r"""Stochastic gradient Langevin dynamics of independent particles (Welling and Teh 2011; An et al. 2020, C.1).

    .. math:: -\nabla U(\theta_i) + \sqrt{\frac{2}{b \epsilon}}\, \xi_i, \qquad \xi_i \sim \mathcal N(0, I).

    In steps of a small size :math:`\epsilon` the particles become samples of exp(-b U).

    ``particles``, ``grads``, the result ``[M, N]`` and the errors are those of :func:`svgd_direction`;
    ``inverse_temperature`` b, ``step_size`` and ``generator`` are those of :func:`spos_direction`.

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
    dtype = torch.promote_types(particles.dtype, torch.float32)
    noise = torch.randn(particles.shape, dtype=dtype, device=particles.device, generator=generator)
    return noise * math.sqrt(2 / (inverse_temperature * step_size))


class CollapseWarning(UserWarning):
    """Category of the warning that a driver issues if two particles coincide (:meth:`ParticleDiagnostics.collapse`)."""


@dataclass(frozen=True)
class ParticleDiagnostics:
    """Diagnostics of M particles of dimension N, computed by :func:`diagnose`.

    Attributes:
        bandwidth: bandwidth of the kernel, the median if there is one per dimension; None if the kernel has none.
        repulsion_ratio: root mean square of the repulsive term of the direction over that of the attractive term; None
            if the attractive term is 0.
        smallest_distance: smallest distance between two particles; None for one particle.
        relative_distance: ``smallest_distance`` over the root mean square norm of the particles; None for one particle,
            or if all particles are 0.
        spread: ratio of the particles' variance to the posterior's, see :func:`spread`; None for one particle or
            without repulsion.
    """

    bandwidth: float | None
    repulsion_ratio: float | None
    smallest_distance: float | None
    relative_distance: float | None
    spread: float | None

    def collapse(self, least_distance: float = 1e-5, least_spread: float = 0.3) -> str | None:
        """Why the particles have collapsed, as the text of a warning; None if they have not.

        Particles have collapsed if two coincide or if their variance is too small. A variance that is too large is not
        reported: few particles with :class:`probattn.particles.SlicedRBF` may have twice the posterior's variance.

        Args:
            least_distance: two particles coincide if ``relative_distance`` is at most this.
            least_spread: smallest acceptable ``spread``. 0 omits this check, as drivers do during training, where
                particles are far from equilibrium and ``spread`` does not measure variance.

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
    """Computes diagnostics of particles ``[M, N]``; arguments and errors are those of :func:`svgd_direction`.

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
    r"""Ratio of the particles' variance to the posterior's, from Stein's identity.

    Under :math:`p \propto \exp(-U / a)`, integration by parts gives
    :math:`\mathbb E\,(\theta - m)^\top \nabla U(\theta) = a N` for any m. The result is an unbiased estimate of this
    expectation, with the particles' mean as m, divided by aN:

    .. math::
        \frac{1}{a N (M - 1)} \sum_{i=1}^M
            (\theta_i - \bar\theta)^\top \left(\nabla U(\theta_i) - \overline{\nabla U}\right).

    For independent samples of any posterior the result is 1 on average. For a Gaussian posterior with covariance
    :math:`\Sigma` it is :math:`\mathrm{tr}(\Sigma^{-1} S) / N` with S the particles' covariance, a mean of variance
    ratios over directions. It does not show lost correlations if each dimension keeps its conditional variance (as
    under a mean-field approximation), nor a wrong variance in a few of many directions.

    ``repulsion`` is a > 0, as in the direction. Arguments and errors are those of :func:`svgd_direction`, for M >= 2
    particles; the result is a scalar, ``[]``.

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
