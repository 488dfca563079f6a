"""Options that every set of particles has, whether they are heads or whole models."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch

from probattn.options import Natural, NonNegative, Options, Positive
from probattn.particles import (
    CosineKernel,
    IdentityKernel,
    InverseMultiquadric,
    LinearKernel,
    MarginalRBF,
    MedianRBF,
    ParticleKernel,
    SlicedRBF,
)

Sampler = Literal["svgd", "spos", "sgld"]
KernelName = Literal[
    "median_rbf", "marginal_rbf", "sliced_rbf", "inverse_multiquadric", "linear", "cosine", "identity"
]

_KERNELS: dict[str, Any] = {
    "median_rbf": MedianRBF,
    "marginal_rbf": MarginalRBF,
    "inverse_multiquadric": InverseMultiquadric,
    "linear": LinearKernel,
}
_PLAIN_KERNELS: dict[str, Any] = {"cosine": CosineKernel, "identity": IdentityKernel}


@dataclass(frozen=True)
class ParticleOptions(Options):
    r"""Options of particles; :class:`probattn.RepulsiveAttention` and ``EnsembleOptions`` define the particles.

    With u the mean loss over N data, the prior over N included, the noise of "sgld" and "spos" stands for the tempered
    posterior :math:`\exp(-N u / T)`:

    .. math::
        \text{sgld:} \quad -\nabla u + \sqrt{\frac{2 T}{N \epsilon}}\, \xi, \qquad
        \text{spos:} \quad \phi^{\mathrm{SVGD}} - w \nabla u + \sqrt{\frac{2 w T}{N \epsilon}}\, \xi.

    Args:
        sampler: "svgd", "spos" (SVGD with Langevin noise) or "sgld" (noise without repulsion).
        step_size: epsilon > 0.
        repulsion: a >= 0; unused by "sgld".
        kernel: a kernel of :mod:`probattn.particles`, or "identity", which couples no particles.
        bandwidth: of the kernel, > 0; None for its own rule, the median's. Not for "sliced_rbf", "cosine" and
            "identity".
        offset: added to the kernel "cosine", >= 0, by default 1; 0 is that of An et al. (2020, appendix C.6).
        prior: "uniform", or the standard deviation > 0 of a normal prior around 0 of every number of a particle.
        temperature: T > 0 of "spos" and "sgld"; 1 is the posterior, "datum" is N, the posterior exp(-u) of one datum.
        langevin: w > 0, weight of the Langevin part of "spos" relative to SVGD's.
        seed: of the noise, >= 0; torch's global generators are not used.

    Raises:
        ValueError: an option is outside its range.
    """

    sampler: Sampler = "svgd"
    _: KW_ONLY
    step_size: Positive = 0.1
    repulsion: NonNegative = 0.01
    kernel: KernelName = "median_rbf"
    bandwidth: Positive | None = None
    offset: NonNegative | None = None
    prior: Literal["uniform"] | Positive = "uniform"
    temperature: Literal["datum"] | Positive = 1.0
    langevin: Positive = 1.0
    seed: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bandwidth is not None and self.kernel not in _KERNELS:
            owner = type(self).__name__
            raise ValueError(f"{owner}.bandwidth: the kernel {self.kernel!r} has none; leave it out")

        if self.offset is not None and self.kernel != "cosine":
            owner = type(self).__name__
            raise ValueError(f"{owner}.offset: the kernel {self.kernel!r} has none; leave it out")

    @property
    def couples(self) -> bool:
        """True if particles act on each other, so that a single particle would have none to repel."""
        return self.sampler != "sgld" and self.repulsion > 0 and self.kernel != "identity"

    def build_kernel(self, generator: torch.Generator | None = None) -> ParticleKernel:
        """The kernel that the options name; ``generator`` gives a sliced one its directions."""
        if self.kernel == "sliced_rbf":
            return SlicedRBF(generator=generator)
        if self.kernel == "cosine" and self.offset is not None:
            return CosineKernel(self.offset)
        plain = _PLAIN_KERNELS.get(self.kernel)
        kernel: ParticleKernel = _KERNELS[self.kernel](bandwidth=self.bandwidth) if plain is None else plain()
        return kernel
