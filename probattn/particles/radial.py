"""Kernels of the distance between whole vectors."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from probattn.checks import check_number
from probattn.particles.distances import centre, median_bandwidth, squared_distances
from probattn.particles.kernel import Coefficients, WholeVectorKernel


class RadialKernel(WholeVectorKernel):
    """A kernel f(s / h) of the squared distance s.

    Args:
        bandwidth: h > 0, in units of a squared distance; None for :func:`median_bandwidth` of the particles at hand.
    """

    def __init__(self, bandwidth: float | None = None) -> None:
        if bandwidth is not None:
            check_number(type(self).__name__, "bandwidth", bandwidth, positive=True)
        self.bandwidth = bandwidth

    @abstractmethod
    def profile(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """f and its derivative at s / h, both ``[M, M]``."""

    def coefficients(self, particles: Tensor) -> Coefficients:
        """See :class:`WholeVectorKernel`; the gradient is 2 f'(s / h) / h times the difference of two particles."""
        squares = squared_distances(particles)
        width = median_bandwidth(squares) if self.bandwidth is None else squares.new_tensor(self.bandwidth)
        values, derivative = self.profile(squares / width)
        slope = 2 * derivative / width
        return Coefficients(values, slope, -slope, centre(particles), width)


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
