"""Kernels between particles: their interface, also to Pyro's ``SteinKernel``, and kernels of whole vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple, get_args

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.distances import (
    centre,
    checked_pair,
    checked_particles,
    full_median_bandwidth,
    median_bandwidth,
    squared_distances,
)

SMALLEST = 1e-30  # a kernel of 0 has no logarithm: in Pyro's form it is this, and its gradient is kept


class Interaction(NamedTuple):
    r"""Interaction of M particles.

    Attributes:
        attraction: ``[M, N]``, row i :math:`\sum_j \kappa(\theta_j, \theta_i) \nabla U(\theta_j)`.
        repulsion: ``[M, N]``, row i :math:`\sum_j \nabla_{\theta_j} \kappa(\theta_j, \theta_i)`.
        bandwidth: ``[]``, or ``[N]`` for one kernel per dimension; None for a kernel that has none.
    """

    attraction: Tensor
    repulsion: Tensor
    bandwidth: Tensor | None


class ParticleKernel(ABC):
    """A kernel by which particles ``[M, N]`` attract and repel each other.

    :meth:`interact` serves the directions of this package without an ``[M, M, N]`` array. Kernels of a number for each
    pair, or for each pair and dimension, are Pyro's ``SteinKernel`` too and can be handed to :class:`pyro.infer.SVGD`;
    the ``mode`` of its engine that gives the same direction stands with each. The bandwidth counts as a constant in
    every gradient.

    Attributes:
        takes_sets: whether :meth:`interact` takes several sets of particles at once too, ``[..., M, N]``.
    """

    takes_sets = False

    @abstractmethod
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion of all particles at once, and the bandwidth.

        Args:
            particles: ``[M, N]``, floating; computed at least in float32, without gradient.
            grads: ``[M, N]``, gradient of the potential at each particle.

        Raises:
            TypeError: particles are not floating-point.
            ValueError: shapes, types or devices do not fit.
        """


class Coefficients(NamedTuple):
    """A kernel ``[..., M, M]``; its gradient at i, j is ``other`` times x_j plus ``same`` times x_i of ``origin``."""

    values: Tensor
    other: Tensor
    same: Tensor
    origin: Tensor
    bandwidth: Tensor | None


class WholeVectorKernel(ParticleKernel, SteinKernel):
    """A kernel of whole vectors: time O(M^2 N), memory O(M^2 + M N); ``mode="multivariate"`` in Pyro's engine."""

    takes_sets = True

    @abstractmethod
    def coefficients(self, particles: Tensor) -> Coefficients:
        """The kernel and its gradient between all particles ``[..., M, N]``, which are checked already."""

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion by two matrix products; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads, sets=True)
        with torch.autocast(particles.device.type, enabled=False):
            values, other, same, x, bandwidth = self.coefficients(particles)
            return Interaction(values @ grads, other @ x + same.sum(dim=-1, keepdim=True) * x, bandwidth)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Pyro's form ``[M, M, N]``: log kernel / N, and minus its gradient; ``ValueError`` for a negative kernel."""
        name = type(self).__name__
        particles = checked_particles(name, particles)
        matrices = self.coefficients(particles)
        if bool((matrices.values < -torch.finfo(particles.dtype).eps * matrices.values.abs().max()).any()):
            raise ValueError(
                f"{name}: Pyro's engine takes the logarithm of a kernel, and this one falls to "
                f"{matrices.values.min().item():.3g}; raise its offset"
            )
        values = matrices.values.clamp_min(SMALLEST)
        x = matrices.origin
        # [M, M, N]
        gradient = matrices.other.unsqueeze(-1) * x + matrices.same.unsqueeze(-1) * x.unsqueeze(1)
        share = values.log() / particles.shape[1]
        return share.unsqueeze(-1).expand_as(gradient), -gradient / values.unsqueeze(-1)


class RadialKernel(WholeVectorKernel):
    """A kernel f(s / h) of the squared distance s; the bandwidth h > 0 is the median's where it is None."""

    def __init__(self, bandwidth: float | None = None) -> None:
        if bandwidth is not None:
            check_number(type(self).__name__, "bandwidth", bandwidth, positive=True)
        self.bandwidth = bandwidth

    def rule(self, squares: Tensor) -> Tensor:
        """h ``[...]`` where none is fixed, from squared distances ``[..., M, M]``: the median's."""
        return median_bandwidth(squares)

    @abstractmethod
    def profile(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """f and its derivative at s / h, both ``[..., M, M]``."""

    def coefficients(self, particles: Tensor) -> Coefficients:
        """See :class:`WholeVectorKernel`; the gradient is 2 f'(s / h) / h times the difference of two particles."""
        centred = centre(particles)
        squares = squared_distances(particles, centred)
        width = self.rule(squares) if self.bandwidth is None else squares.new_tensor(self.bandwidth)
        by_pair = width[..., None, None]
        values, derivative = self.profile(squares / by_pair)
        slope = 2 * derivative / by_pair
        return Coefficients(values, slope, -slope, centred, width)


class MedianRBF(RadialKernel):
    r"""The Gaussian kernel of whole vectors with the median bandwidth (An et al. 2020, appendix B).

    .. math:: \kappa(x, y) = \exp\left(-\frac{|x - y|^2}{h}\right), \qquad h = \frac{\mathrm{med}^2}{\log M}.

    It keeps correlations and loses variance: about log M / N of it stays in N dimensions. Two particles have the kernel
    1/2 at every distance. Where all particles coincide the kernel is 1 and nothing repels.

    Args:
        bandwidth: a fixed h > 0 in place of the median's.

    Raises:
        ValueError: a bandwidth that is not positive.

    Example:
        >>> particles = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> attraction, repulsion, bandwidth = MedianRBF().interact(particles, torch.eye(2))
        >>> attraction
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
        >>> bandwidth.round(decimals=3)  # 25 / log 2
        tensor(36.0670)
    """

    def profile(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """exp(-r) and its derivative."""
        values = torch.exp(-ratio)
        return values, -values


class ReleaseRBF(MedianRBF):
    r"""The Gaussian kernel with the bandwidth of the authors' code (github.com/bangann/Repulsive-Attention).

    .. math:: h = \frac{\mathrm{med}^2}{\log(M + 1)},

    with the median over all M^2 distances, those of particles from themselves included. Arguments and errors are those
    of :class:`MedianRBF`.

    Example:
        >>> ReleaseRBF().interact(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.eye(2)).bandwidth.round(decimals=3)
        tensor(11.3780)
    """

    def rule(self, squares: Tensor) -> Tensor:
        """h ``[...]`` where none is fixed, from squared distances ``[..., M, M]``."""
        return full_median_bandwidth(squares)


class InverseMultiquadric(RadialKernel):
    r"""The inverse multiquadric kernel (Gorham and Mackey 2017), whose tails are heavy: far particles still interact.

    .. math:: \kappa(x, y) = \left(1 + \frac{|x - y|^2}{h}\right)^{-\gamma}, \qquad h = \frac{\mathrm{med}^2}{\log M}.

    Args:
        exponent: gamma > 0.
        bandwidth: a fixed h > 0 in place of the median's.

    Raises:
        ValueError: a bandwidth or an exponent that is not positive.

    Example:
        >>> particles = torch.tensor([[0.0], [3.0]])
        >>> InverseMultiquadric(bandwidth=3.0).interact(particles, torch.ones(2, 1)).attraction
        tensor([[1.5000],
                [1.5000]])
    """

    def __init__(self, exponent: float = 0.5, bandwidth: float | None = None) -> None:
        super().__init__(bandwidth)
        check_number(type(self).__name__, "exponent", exponent, positive=True)
        self.exponent = exponent

    def profile(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """(1 + r)^-gamma and its derivative."""
        values = (1 + ratio).pow(-self.exponent)
        return values, -self.exponent * values / (1 + ratio)


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
            largest = centred.square().sum(dim=-1).amax(dim=-1)
            eps = torch.finfo(particles.dtype).eps
            resolution = (8 * eps) ** 2 * particles.square().sum(dim=-1).amax(dim=-1)
            width = torch.where(largest > resolution.clamp_min(torch.finfo(largest.dtype).tiny), largest, 1.0)
        else:
            width = centred.new_tensor(self.bandwidth)
        product = (centred @ centred.mT) / width[..., None, None]
        factor = torch.ones_like(product) / width[..., None, None]
        return Coefficients(self.offset + product, torch.zeros_like(factor), factor, centred, width)


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
        cosine = units @ units.mT
        # Along units: the gradient is (unit_i - cosine unit_j) / |theta_j|.
        factor = inverse.mT.expand_as(cosine)
        return Coefficients(self.offset + cosine, -cosine * inverse.mT, factor, units, None)


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

    takes_sets = True

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """The gradients, and no repulsion; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads, sets=True)
        return Interaction(grads, torch.zeros_like(particles), None)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Pyro's form ``[M, M, N]``: 0 on the diagonal and minus infinity elsewhere, and no gradient."""
        particles = checked_particles(type(self).__name__, particles)
        count, size = particles.shape
        same = torch.eye(count, dtype=torch.bool, device=particles.device).unsqueeze(-1)
        log_kernel = particles.new_full((count, count, size), -torch.inf).masked_fill(same, 0.0)
        return log_kernel, torch.zeros_like(log_kernel)


class UnsmoothedKernel(ParticleKernel):
    r"""The repulsion of another kernel, while each particle follows its own gradient alone.

    .. math:: \phi_i = -\nabla U(\theta_i) + \frac aM \sum_{j=1}^M \nabla_{\theta_j} \kappa(\theta_j, \theta_i)

    This is Stein variational gradient descent without the smoothing of gradients over particles (An et al. 2020,
    section C.6 and Table 9), and without a posterior that it would sample. The attraction is M times the gradient, so
    that :func:`~probattn.particles.svgd_direction`, which divides by M, leaves the gradient whole.

    Example:
        >>> from probattn.particles import CosineKernel, svgd_direction
        >>> particles, grads = torch.eye(2), torch.ones(2, 2)
        >>> svgd_direction(particles, grads, UnsmoothedKernel(CosineKernel()), repulsion=0.0)
        tensor([[-1., -1.],
                [-1., -1.]])
    """

    def __init__(self, kernel: ParticleKernel) -> None:
        self.kernel = kernel
        self.takes_sets = kernel.takes_sets

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kernel!r})"

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion of all particles; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads, sets=self.takes_sets)
        inner = self.kernel.interact(particles, grads)
        return Interaction(particles.shape[-2] * grads, inner.repulsion, inner.bandwidth)


Mode = Literal["multivariate", "univariate"]


def check_kernel_gradient(kernel: object, gradient: Tensor) -> None:
    """Refuses a gradient that is not finite (``ValueError``)."""
    if not bool(gradient.isfinite().all()):
        raise ValueError(
            f"the gradient of {type(kernel).__name__} is not finite; Pyro's kernels divide by the median distance of a "
            "coordinate, which is 0 where particles begin as copies: set spread > 0, or take a kernel of "
            "probattn.particles"
        )


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
        """The terms that the engine computes of the kernel; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        log_kernel, gradient = self.log_kernel_and_grad(particles)
        check_kernel_gradient(self.kernel, gradient)
        if self.mode == "univariate":
            kernel = log_kernel.exp()
            attraction = torch.einsum("ijn,jn->in", kernel, grads)
            return Interaction(attraction, -torch.einsum("ijn,ijn->in", kernel, gradient), None)
        kernel = log_kernel.sum(dim=-1).exp()
        return Interaction(kernel @ grads, -torch.einsum("ij,ijn->in", kernel, gradient), None)

    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """The two arrays ``[M, M, N]`` of the kernel itself."""
        return self.kernel.log_kernel_and_grad(particles)
