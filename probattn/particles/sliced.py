"""Gaussian kernels along single directions: the axes, or random directions after whitening."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.distances import centre, checked_pair, checked_particles, median_bandwidth
from probattn.particles.kernels import Interaction, ParticleKernel

BLOCK = 2**20  # largest number of pairwise differences that stand in memory at once


class MarginalRBF(ParticleKernel, SteinKernel):
    r"""One Gaussian kernel per dimension, each with its own median bandwidth (Singhal et al. 2019).

    .. math::
        \kappa_d(x, y) = \exp\left(-\frac{(x_d - y_d)^2}{h_d}\right), \qquad h_d = \frac{\mathrm{med}_d^2}{\log M}

    with :math:`\mathrm{med}_d` the median distance in dimension d, as in :class:`MedianRBF`. Particles keep the
    variance of independent dimensions, however many there are, but lose correlations: few particles of a correlated
    posterior end with about the variances of a mean-field approximation. Time O(M^2 N), memory O(M N).

    Args:
        bandwidth: a fixed h > 0 for every dimension, in units of a squared distance; None for the formula above.
        scale: a factor > 0 by which every bandwidth is multiplied.

    Raises:
        ValueError: the bandwidth or the scale is not positive.

    Example:
        >>> particles = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> MarginalRBF().interact(particles, torch.eye(2)).bandwidth.round(decimals=3)  # 9 / log 2, 16 / log 2
        tensor([12.9840, 23.0830])
    """

    def __init__(self, bandwidth: float | None = None, scale: float = 1.0) -> None:
        check_number(type(self).__name__, "scale", scale, positive=True)
        if bandwidth is not None:
            check_number(type(self).__name__, "bandwidth", bandwidth, positive=True)
        self.bandwidth = bandwidth
        self.scale = scale

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """Attraction and repulsion, dimension by dimension; see :meth:`ParticleKernel.interact`."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        count, size = particles.shape
        attraction, repulsion = torch.empty_like(grads), torch.empty_like(particles)
        bandwidth = particles.new_empty(size)
        step = max(1, BLOCK // count**2)
        for start in range(0, size, step):
            columns = slice(start, start + step)
            difference, width = self._differences(particles[:, columns])
            kernel = torch.exp(-difference.square() / width)  # [M, M, n]
            attraction[:, columns] = torch.einsum("ijn,jn->in", kernel, grads[:, columns])
            repulsion[:, columns] = 2 / width * (kernel * difference).sum(dim=1)
            bandwidth[columns] = width
        return Interaction(attraction, repulsion, bandwidth)

    @torch.no_grad()
    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        r"""The arrays ``[M, M, N]`` that :class:`pyro.infer.SVGD` needs in ``mode="univariate"``.

        Entries n, m, d are :math:`\log \kappa_d(\theta_n, \theta_m)` and
        :math:`-\partial_{\theta_{md}} \log \kappa_d(\theta_n, \theta_m)`, with the sign of Pyro's kernels.
        """
        particles = checked_particles(type(self).__name__, particles)
        difference, width = self._differences(particles)
        return -difference.square() / width, -2 * difference / width

    def _differences(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Row i minus row j ``[M, M, n]`` and the bandwidths ``[n]``."""
        difference = particles.unsqueeze(1) - particles.unsqueeze(0)
        if self.bandwidth is not None:
            return difference, particles.new_full((particles.shape[1],), self.scale * self.bandwidth)
        return difference, self.scale * median_bandwidth(difference.square().movedim(-1, 0))


LEAST = 1e-3  # least share of the mean variance that a direction is given


class Whitening(NamedTuple):
    r"""The root of a covariance, :math:`A = \sqrt{w} I + \sum_k (\sqrt{w_k} - \sqrt w)\, v_k v_k^\top`."""

    axes: Tensor  # [K, N], orthonormal rows v, K <= M
    roots: Tensor  # [K], of w_k
    rest: Tensor  # [], the root of w, for what is orthogonal to the axes

    def apply(self, rows: Tensor) -> Tensor:
        """Rows ``[M, N]`` times A."""
        return self._scaled(rows, self.roots, self.rest)

    def invert(self, rows: Tensor) -> Tensor:
        """Rows ``[M, N]`` times the inverse of A."""
        return self._scaled(rows, 1 / self.roots, 1 / self.rest)

    def _scaled(self, rows: Tensor, roots: Tensor, remainder: Tensor) -> Tensor:
        return remainder * rows + ((rows @ self.axes.T) * (roots - remainder)) @ self.axes


def whiten(particles: Tensor) -> Whitening:
    """The root of the particles' covariance, shrunk to the identity (Chen et al. 2010), over its mean variance."""
    count, size = particles.shape
    centred = centre(particles)
    values, vectors = torch.linalg.eigh(centred @ centred.T / count)
    eps = torch.finfo(particles.dtype).eps
    floor = (8 * eps) ** 2 * particles.square().sum(dim=-1).max() + torch.finfo(particles.dtype).tiny
    nonzero = values > torch.maximum(values.max() * size * eps, floor)
    values, vectors = values[nonzero], vectors[:, nonzero]
    if not values.numel():
        one = particles.new_ones(())
        return Whitening(particles.new_empty(0, size), particles.new_empty(0), one)
    axes = (vectors / (count * values).sqrt()).T @ centred
    trace, squares = values.sum(), values.square().sum()
    mean = trace / size
    apart = (squares - trace**2 / size).clamp_min(eps * squares)
    share = (squares + trace**2) / ((count + 1) * apart)
    share = share.clamp(LEAST, 1.0)
    return Whitening(axes, ((1 - share) * values / mean + share).sqrt(), share.sqrt())


DENSE = 128  # most dimensions for a rotation by a matrix; more of them are rotated by a fast transform


class Rotation(NamedTuple):
    """An orthogonal map of N dimensions: a matrix ``[N, N]``, or signs ``[N]`` before Hartley's transform."""

    values: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        """Coordinates ``[M, N]`` of rows ``[M, N]`` along the axes."""
        return rows @ self.values if self.values.dim() == 2 else _hartley(rows * self.values)

    def backward(self, coordinates: Tensor) -> Tensor:
        """Rows ``[M, N]`` that have these coordinates."""
        if self.values.dim() == 2:
            return coordinates @ self.values.T
        return _hartley(coordinates) * self.values


def draw_rotation(size: int, like: Tensor, generator: torch.Generator | None) -> Rotation:
    """A random rotation: of Haar's distribution up to signs, or for many dimensions signs and Hartley's transform."""
    if size <= DENSE:
        normal = torch.randn(size, size, dtype=like.dtype, device=like.device, generator=generator)
        return Rotation(torch.linalg.qr(normal)[0])
    bits = torch.randint(0, 2, (size,), device=like.device, generator=generator)
    return Rotation((2 * bits - 1).to(like.dtype))


class SlicedRBF(ParticleKernel):
    r"""One Gaussian kernel along each of N random orthogonal directions, drawn again in every call.

    .. math::
        K(x, y) = \sum_{d=1}^N \exp\left(-\frac{(r_d^\top A^{-1} (x - y))^2}{h_d}\right) A r_d r_d^\top A, \qquad
        h_d = s\, \frac{\mathrm{med}_d^2}{\log M},

    a matrix-valued kernel (Wang et al. 2019) of slices (Gong et al. 2021), with :math:`\mathrm{med}_d` the median
    distance along direction :math:`r_d`. A is the root of the particles' covariance, scaled to mean variance 1, shrunk
    towards the identity if there are few particles, and a constant in gradients. On average over directions, particles
    of a Gaussian posterior are at rest only if they have its covariance, whereas :class:`MarginalRBF` does not
    distinguish a correlated posterior from its mean-field approximation. The random directions add noise to the steps;
    decrease the step size during sampling.

    Few particles of a posterior that is much wider in some directions than in others become too wide in the wide ones:
    12 particles of a Gaussian in 50 dimensions with correlations of 0.9 have nearly twice its variance.

    Time O(M^2 N + M N log N), memory O(M N). ``pyro.infer.SVGD`` cannot use this kernel.

    Args:
        scale: s > 0. Larger values match the covariance more closely, and other features of a posterior less; with
            s = 1 particles keep less of the variance, because few are close to each other along a random direction.
        generator: source of the directions, on the particles' device; torch's global one by default.

    Raises:
        ValueError: the scale is not positive.

    Example:
        >>> kernel = SlicedRBF(generator=torch.Generator().manual_seed(0))
        >>> particles = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> pull, push, bandwidth = kernel.interact(particles, torch.ones(2, 2))
        >>> torch.allclose(pull, torch.full((2, 2), 1 + 0.5**0.25))  # two particles: exp(-log(2) / 4), by slice
        True
    """

    def __init__(self, scale: float = 4.0, generator: torch.Generator | None = None) -> None:
        check_number("SlicedRBF", "scale", scale, positive=True)
        self.marginal = MarginalRBF(scale=scale)
        self.generator = generator

    @torch.no_grad()
    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        """The sums of :class:`Interaction` with new directions; the bandwidth ``[N]`` has one entry per direction."""
        particles, grads = checked_pair(type(self).__name__, particles, grads)
        with torch.autocast(particles.device.type, enabled=False):
            root = whiten(particles)
            rotation = draw_rotation(particles.shape[1], particles, self.generator)
            positions, slopes = rotation.forward(root.invert(particles)), rotation.forward(root.apply(grads))
            *terms, bandwidth = self.marginal.interact(positions, slopes)
            attraction, repulsion = (root.apply(rotation.backward(term)) for term in terms)
            return Interaction(attraction, repulsion, bandwidth)


def _hartley(rows: Tensor) -> Tensor:
    """Hartley's transform ``[M, N]``, orthogonal and its own inverse, in any number of dimensions."""
    spectrum = torch.fft.fft(rows, norm="ortho")
    return spectrum.real - spectrum.imag
