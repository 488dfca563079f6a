"""The noise of an observed number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyro.distributions as dist
import torch
from scipy import special
from torch import Tensor, nn

from probattn.options import Options, Positive


@dataclass(frozen=True)
class ObservationNoise(Options):
    r"""How observed numbers spread around their prediction.

    .. math:: y_d = f_d + \sigma_d \epsilon, \quad \epsilon \sim \mathcal N(0, 1) \text{ or } t_\nu

    Args:
        family: "normal", or "student_t", which forgives outliers.
        degrees: :math:`\nu`, degrees of freedom of "student_t", > 0.
        scale: :math:`\sigma` at the beginning, in units of y, > 0; it is learned.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> ObservationNoise("student_t").degrees
        4.0
    """

    family: Literal["normal", "student_t"] = "normal"
    degrees: Positive = 4.0
    scale: Positive = 1.0


@dataclass(frozen=True, eq=False)
class ObservedNoise:
    """Noise with its learned scale of each of D numbers, ``[D]``, in units of y."""

    options: ObservationNoise
    scale: Tensor

    @property
    def std(self) -> Tensor:
        """Standard deviation, ``[D]``; infinite for two degrees of freedom or fewer."""
        if self.options.family == "normal":
            return self.scale
        degrees = self.options.degrees
        return self.scale * math.sqrt(degrees / (degrees - 2) if degrees > 2 else math.inf)

    def cdf(self, residual: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Probability of a smaller residual, ``[..., D]``."""
        scaled = residual / self.scale.cpu().double().numpy()
        if self.options.family == "normal":
            return np.asarray(special.ndtr(scaled))
        return np.asarray(special.stdtr(self.options.degrees, scaled))

    def log_density(self, residual: Tensor) -> Tensor:
        """Logarithm of the density of a residual of one number, of its shape."""
        scale = self.scale.to(residual)
        return _law(self.options, torch.zeros_like(scale), scale).log_prob(residual)


def _law(noise: ObservationNoise, location: Tensor, scale: Tensor) -> dist.Normal | dist.StudentT:
    if noise.family == "normal":
        return dist.Normal(location, scale)
    return dist.StudentT(noise.degrees, location, scale)


class ObservationScale(nn.Module):
    """The learned scale of :class:`ObservationNoise`, one for each of D numbers; ``forward`` gives the law."""

    def __init__(self, noise: ObservationNoise, size: int) -> None:
        super().__init__()
        self.noise = noise
        self.log_scale = nn.Parameter(torch.full((size,), math.log(noise.scale)))

    def forward(self, location: Tensor) -> dist.Normal | dist.StudentT:
        """The law of the observed numbers ``[B, D]`` around their predictions."""
        return _law(self.noise, location, self.log_scale.float().exp())

    def learned(self) -> ObservedNoise:
        """The noise as it is at present."""
        return ObservedNoise(self.noise, self.log_scale.detach().float().exp())

    def extra_repr(self) -> str:
        """The options, for ``print(network)``."""
        return str(self.noise)
