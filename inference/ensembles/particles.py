"""Whole models as particles: options, sets of parameters, and their update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor, nn

from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.particle_update import ParticleUpdate
from probattn.options import Count, NonNegative, Positive
from probattn.particles import ParticleKernel
from probattn.sites.alignment_factor import AlignmentFactor
from probattn.sites.repulsive import ParticleOptions

Sets = Literal["model", "module", "parameter"]


@dataclass(frozen=True)
class EnsembleOptions(ParticleOptions):
    r"""Options of the particles of a :class:`ParticleEnsemble` and of their updates.

    The potential is :math:`U(\theta) = N u(\theta) + |\theta|^2 / (2 \sigma^2)`, with u the mean loss over N data as
    the driver has it, so that at ``repulsion=1`` particles stand for the posterior :math:`\exp(-U)`. In the scale of u,
    in which :class:`probattn.RepulsiveAttention` states its weight, that is a repulsion of 1 / N. What the optimiser
    sees is :math:`-\epsilon \phi / N`, in the scale of u, so that step sizes are those of plain training.

    Args:
        sampler: "svgd", "spos" (SVGD with Langevin noise) or "sgld" (noise without repulsion). The two with noise
            have the posterior's variance under plain gradient descent with rate 1, "spos" a little less, by what its
            kernel pulls together.
        step_size: epsilon > 0, in the scale of the mean loss. Under Adam and its like it does nothing.
        repulsion: a >= 0. At another value than 1 the particles stand for exp(-U / a).
        kernel: as for :class:`probattn.RepulsiveAttention`. "sliced_rbf" keeps more of the posterior's variance
            in many dimensions than "median_rbf".
        bandwidth: of the kernel, > 0.
        offset: of the kernel "cosine", >= 0.
        prior: "uniform", or the standard deviation sigma > 0 of a normal prior around 0 of every stacked parameter.
            Other priors are factors of the model. Weight decay of an optimiser is one more prior.
        temperature: T > 0 of "spos" and "sgld", whose noise stands for exp(-U / T): 1 is the posterior, "datum" is
            N, the posterior exp(-U / N) of one datum.
        langevin: w > 0, the weight of Langevin's part in "spos" relative to SVGD's; 1 / b in Eq. 5 of An et al. 2020.
        seed: of the noise, >= 0.
        sets: which parameters make one particle: all of the "model" together, or sets of their own for each "module"
            or each "parameter", within which particles repel each other.
        num_data: N; None for the number of training data. A program without a plate over data has their sum as its
            loss: give 1.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> EnsembleOptions(kernel="sliced_rbf", prior=1.0).couples
        True
    """

    _: KW_ONLY
    step_size: Positive = 1.0
    repulsion: NonNegative = 1.0
    sets: Sets = "model"
    num_data: Count | None = None

    @classmethod
    def independent(cls, num_particles: int) -> EnsembleOptions:
        """Particles that do not see each other: a deep ensemble (Lakshminarayanan et al. 2017).

        Each follows its own gradient alone, as if it were trained apart.

        Args:
            num_particles: P of the ensemble; as a step size it undoes SVGD's mean over particles.

        Example:
            >>> EnsembleOptions.independent(5).couples
            False
        """
        return cls(kernel="identity", repulsion=0.0, step_size=float(num_particles))


@dataclass(frozen=True)
class StackedSet:
    """Stacked parameters ``[P, ...]`` by name as particles ``[P, N]``: a row is one particle's numbers."""

    parameters: Mapping[str, nn.Parameter]

    def particles(self) -> Tensor:
        """The particles ``[P, N]``, detached; a copy unless there is one parameter."""
        return self._rows([parameter.detach() for parameter in self.parameters.values()])

    def gradients(self) -> Tensor:
        """Their gradients ``[P, N]``, detached; raises ``ValueError`` where a parameter has none."""
        missing = [name for name, parameter in self.parameters.items() if parameter.grad is None]
        if missing:
            raise ValueError(
                f"ParticleEnsemble: {', '.join(missing)} have no gradient: the loss does not depend on them; leave "
                "them out with parameters=..."
            )
        return self._rows([p.grad.detach() for p in self.parameters.values() if p.grad is not None])

    @torch.no_grad()
    def write(self, directions: Tensor, step_size: float) -> None:
        r"""Makes the parameters' gradients :math:`-\epsilon \phi`, for any optimiser."""
        start = 0
        for parameter in self.parameters.values():
            assert parameter.grad is not None
            size = parameter[0].numel()
            part = directions[:, start : start + size]
            parameter.grad.copy_((-step_size * part).view_as(parameter))
            start += size

    @staticmethod
    def _rows(stacks: list[Tensor]) -> Tensor:
        rows = [stack.flatten(1) if stack.dim() > 1 else stack.unsqueeze(1) for stack in stacks]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)


class EnsembleParticles(ParticleUpdate):
    r"""Turns the gradients of an ensemble's particles into :math:`-\epsilon \phi / N`.

    Parameters of alignment's own networks (discriminators, critics) play against the loss and are no part of a
    posterior: each particle has its own, and they follow their own gradients.

    Args:
        ensemble: the particles.
        options: how they move.
        num_data: size of the training data, unless the options say another.
        kernel: any kernel that Pyro's engine takes, in place of the one that the options name.
    """

    def __init__(
        self,
        ensemble: ParticleEnsemble,
        options: EnsembleOptions,
        num_data: int,
        kernel: SteinKernel | ParticleKernel | None = None,
    ) -> None:
        self._ensemble = ensemble
        self._options = options
        data = num_data if options.num_data is None else options.num_data
        sets = {name: (options, StackedSet(stacks)) for name, stacks in _sets(ensemble, options.sets).items()}
        super().__init__(sets, data, scale=float(data), kernel=kernel)

    def mean_squared_gradients(self) -> dict[str, float]:
        """The same by parameter, for any definition of a particle."""
        grads = {name: parameter.grad for name, parameter in self._ensemble.stacked_parameters().items()}
        return {name: float(grad.square().mean()) for name, grad in grads.items() if grad is not None}

    def configuration(self) -> dict[str, Any]:
        """The options."""
        return {"ensemble": asdict(self._options)}


def _sets(ensemble: ParticleEnsemble, kind: Sets) -> dict[str, dict[str, nn.Parameter]]:
    apart = [name for name, module in ensemble.model.named_modules() if isinstance(module, AlignmentFactor)]
    sets: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in ensemble.stacked_parameters().items():
        if not any(name.startswith(f"{prefix}.") for prefix in apart):
            owner = {"model": "model", "module": name.rpartition(".")[0] or "model", "parameter": name}[kind]
            sets.setdefault(owner, {})[name] = parameter
    return sets
