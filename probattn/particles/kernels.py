"""Kernels between particles: their interface, also to Pyro's ``SteinKernel``, and kernels of whole vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.checks import check_choice, check_number
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
    r"""The two sums over particles in SVGD's direction, as a kernel computes them.

    Attributes:
        attraction: ``[M, N]``, with rows :math:`\sum_j \kappa(\theta_j, \theta_i) \nabla U(\theta_j)`.
        repulsion: ``[M, N]``, with rows :math:`\sum_j \nabla_{\theta_j} \kappa(\theta_j, \theta_i)`.
        bandwidth: h, ``[]``, or ``[N]`` for one kernel per dimension; None for a kernel without a bandwidth.
    """

    attraction: Tensor
    repulsion: Tensor
    bandwidth: Tensor | None


class ParticleKernel(ABC):
    """Base class of kernels between particles ``[M, N]``.

    The functions ``*_direction`` call :meth:`interact`, which needs no array ``[M, M, N]``. Most kernels are also a
    ``SteinKernel`` of Pyro; :class:`pyro.infer.SVGD` takes them, with ``mode="univariate"`` for :class:`MarginalRBF`
    and ``mode="multivariate"`` for the others. Gradients of a kernel treat its bandwidth as a constant.

    Attributes:
        takes_sets: whether :meth:`interact` also takes several sets of particles at once, ``[..., M, N]``.
    """

    takes_sets = False

    @abstractmethod
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """The sums of :class:`Interaction` for all particles, at least in float32, without gradient.

        Args:
            particles: ``[M, N]``, floating-point.
            grads: ``[M, N]``, gradient of the potential U at each particle.

        Raises:
            TypeError: the particles are not floating-point.
            ValueError: shapes, dtypes or devices differ.
        """


class Coefficients(NamedTuple):
    """A kernel ``[..., M, M]``; its gradient at i, j is ``other`` times x_j plus ``same`` times x_i of ``origin``."""

    values: Tensor
    other: Tensor
    same: Tensor | None  # None: minus ``other``
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
            sums, sign = (other, -1) if same is None else (same, 1)
            repulsion = torch.addcmul(other @ x, sums.sum(dim=-1, keepdim=True), x, value=sign)
            return Interaction(values @ grads, repulsion, bandwidth)

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
        same = -matrices.other if matrices.same is None else matrices.same
        gradient = matrices.other.unsqueeze(-1) * x + same.unsqueeze(-1) * x.unsqueeze(1)
        share = values.log() / particles.shape[1]
        return share.unsqueeze(-1).expand_as(gradient), -gradient / values.unsqueeze(-1)


class RadialKernel(WholeVectorKernel):
    """A kernel f(s / h) of the squared distance s; the bandwidth h > 0 is the median's where it is None."""

    def __init__(self, bandwidth: float | None = None) -> None:
        if bandwidth is not None:
            check_number(type(self).__name__, "bandwidth", bandwidth, positive=True)
        self.bandwidth = bandwidth

    def rule(self, squares: Tensor) -> Tensor:
        """The bandwidth h ``[...]`` from squared distances ``[..., M, M]``, if none is fixed: med^2 / log M."""
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
        return Coefficients(values, slope, None, centred, width)


class MedianRBF(RadialKernel):
    r"""The Gaussian kernel of whole vectors with the median bandwidth (An et al. 2020, appendix B).

    .. math:: \kappa(x, y) = \exp\left(-\frac{|x - y|^2}{h}\right), \qquad h = \frac{\mathrm{med}^2}{\log M}

    with med the median distance between two particles, the lower one of an even number, as in torch (if it is 0, that
    of the distances > 0; if all particles coincide, h = 1). Particles keep correlations but only about a share
    log M / N of the posterior's variance if N is large. The kernel between two particles (M = 2) is 1/2 at every
    distance > 0.

    Args:
        bandwidth: a fixed h > 0, in units of a squared distance; None for the formula above.

    Raises:
        ValueError: the bandwidth is not positive.

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
        """exp(-r) and its derivative at r = |x - y|^2 / h, ``ratio``; all three are ``[..., M, M]``."""
        values = torch.exp(-ratio)
        return values, -values


class ReleaseRBF(MedianRBF):
    r"""The Gaussian kernel with the bandwidth of the authors' code (github.com/bangann/Repulsive-Attention).

    .. math:: h = \frac{\mathrm{med}^2}{\log(M + 1)}

    where med^2 is the median of all M^2 squared distances, including the M zeros between a particle and itself; if it
    is 0, h is 1. Kernel, argument and errors are those of :class:`MedianRBF`.

    Example:
        >>> ReleaseRBF().interact(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.eye(2)).bandwidth.round(decimals=3)
        tensor(11.3780)
    """

    def rule(self, squares: Tensor) -> Tensor:
        """The bandwidth h ``[...]`` from squared distances ``[..., M, M]``, if none is fixed."""
        return full_median_bandwidth(squares)


class InverseMultiquadric(RadialKernel):
    r"""The inverse multiquadric kernel (Gorham and Mackey 2017); its heavy tails let distant particles interact.

    .. math:: \kappa(x, y) = \left(1 + \frac{|x - y|^2}{h}\right)^{-\gamma}, \qquad h = \frac{\mathrm{med}^2}{\log M}.

    Args:
        exponent: :math:`\gamma > 0`.
        bandwidth: a fixed h > 0, in units of a squared distance; None for the rule of :class:`MedianRBF`.

    Raises:
        ValueError: the bandwidth or the exponent is not positive.

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
        """(1 + r)^-gamma and its derivative at r = |x - y|^2 / h, ``ratio``; all three are ``[..., M, M]``."""
        values = (1 + ratio).pow(-self.exponent)
        return values, -self.exponent * values / (1 + ratio)


class LinearKernel(WholeVectorKernel):
    r"""The linear kernel around the particles' mean.

    .. math:: \kappa(x, y) = c + \frac{(x - \bar x)^\top (y - \bar x)}{h}

    with :math:`\bar x` the particles' mean, a constant in gradients. For a Gaussian posterior and more particles than
    dimensions, SVGD's directions are 0 when the particles have exactly its mean and covariance (Liu and Wang 2018).
    Higher moments are not matched. With fewer particles the variance is right in the directions that they span and 0
    in the others.

    Args:
        offset: c >= 0.
        bandwidth: a fixed h > 0, in units of a squared distance; None for the largest squared distance of a particle
            from the mean (1 if all particles coincide), for which the second term lies between -1 and 1.

    Raises:
        ValueError: the bandwidth is not positive, or the offset is negative.

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
        """Kernel values ``[..., M, M]`` between particles, and the coefficients of their gradients."""
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
    r"""The cosine between two particles plus an offset (An et al. 2020, appendix C.6, with offset 0).

    .. math:: \kappa(x, y) = c + \frac{x^\top y}{|x|\,|y|}

    The kernel depends on the directions of particles, not on their norms. The repulsion that particle j exerts on
    particle i is orthogonal to j and increases the norm of i. A particle of norm 0 has cosine 0 with all.

    Args:
        offset: c >= 0; for c >= 1 the kernel is never negative, which ``pyro.infer.SVGD`` requires.

    Raises:
        ValueError: the offset is negative.

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
        """Kernel values ``[..., M, M]`` between particles, and the coefficients of their gradients."""
        norms = torch.linalg.vector_norm(particles, dim=-1, keepdim=True)  # [M, 1]
        inverse = torch.where(norms > torch.finfo(norms.dtype).tiny, 1 / norms, 0.0)
        units = particles * inverse
        cosine = units @ units.mT
        # Along units: the gradient is (unit_i - cosine unit_j) / |theta_j|.
        factor = inverse.mT.expand_as(cosine)
        return Coefficients(self.offset + cosine, -cosine * inverse.mT, factor, units, None)


class IdentityKernel(ParticleKernel, SteinKernel):
    r"""The kernel that is 1 between a particle and itself and 0 otherwise: particles do not interact.

    SVGD's direction is then :math:`-\nabla U(\theta_i) / M`, gradient descent with the step size divided by M.
    ``pyro.infer.SVGD`` gives this direction in both modes.

    Example:
        >>> IdentityKernel().interact(torch.randn(3, 2), torch.ones(3, 2)).attraction
        tensor([[1., 1.],
                [1., 1.],
                [1., 1.]])
    """

    takes_sets = True

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """The gradients as attraction, and a repulsion of 0; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads, sets=True)
        return Interaction(grads, torch.zeros_like(particles), None)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Pyro's log kernel ``[M, M, N]``, 0 on the diagonal and minus infinity elsewhere, and its gradient, 0."""
        particles = checked_particles(type(self).__name__, particles)
        count, size = particles.shape
        same = torch.eye(count, dtype=torch.bool, device=particles.device).unsqueeze(-1)
        log_kernel = particles.new_full((count, count, size), -torch.inf).masked_fill(same, 0.0)
        return log_kernel, torch.zeros_like(log_kernel)


class UnsmoothedKernel(ParticleKernel):
    r"""The repulsion of another kernel, while the attraction of each particle is its gradient alone.

    .. math:: \phi_i = -\nabla U(\theta_i) + \frac aM \sum_{j=1}^M \nabla_{\theta_j} \kappa(\theta_j, \theta_i)

    is the result of :func:`~probattn.particles.svgd_direction` with ``UnsmoothedKernel(kernel)``: gradients are not
    smoothed over particles (An et al. 2020, section C.6 and Table 9). Such particles do not approximate a posterior.

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
        """M times the gradients, and the other kernel's repulsion; see :meth:`ParticleKernel.interact`."""
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
    """Adapter that lets the functions ``*_direction`` use a kernel of Pyro as :class:`pyro.infer.SVGD` does.

    Args:
        kernel: a ``SteinKernel`` of Pyro, for example ``pyro.infer.RBFSteinKernel()``.
        mode: as in :class:`pyro.infer.SVGD`: "multivariate", the product of the kernel over dimensions, or
            "univariate", one kernel per dimension.

    Raises:
        TypeError: ``kernel`` is not a ``SteinKernel``.
        ValueError: an unknown ``mode``, or, in use, a gradient of the kernel that is not finite.

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
        check_choice("PyroKernel", "mode", mode, Mode)
        self.kernel = kernel
        self.mode = mode

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """The sums that :class:`pyro.infer.SVGD` computes with the kernel; see :meth:`ParticleKernel.interact`."""
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
        """``log_kernel_and_grad`` of the Pyro kernel: two arrays ``[M, M, N]``."""
        return self.kernel.log_kernel_and_grad(particles)
