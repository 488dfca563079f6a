"""The noise of an observed number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pyro.distributions as dist
import torch
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


class ObservationScale(nn.Module):
    """The learned scale of :class:`ObservationNoise`, one for each of D numbers; ``forward`` gives the law."""

    def __init__(self, noise: ObservationNoise, size: int) -> None:
        super().__init__()
        self.noise = noise
        self.log_scale = nn.Parameter(torch.full((size,), math.log(noise.scale)))

    def forward(self, location: Tensor) -> dist.Normal | dist.StudentT:
        """The law of the observed numbers ``[B, D]`` around their predictions."""
        scale = self.log_scale.float().exp()
        if self.noise.family == "normal":
            return dist.Normal(location, scale)
        return dist.StudentT(self.noise.degrees, location, scale)

    def extra_repr(self) -> str:
        """The options, for ``print(network)``."""
        return str(self.noise)
