"""Gradients of a potential become directions of particles before the optimiser sees them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor, nn

from probattn.host import on_cpu
from probattn.inference.configuration import described_object
from probattn.inference.session import derived_seed
from probattn.particles import (
    CollapseWarning,
    HeadSlices,
    Interaction,
    ParticleDiagnostics,
    ParticleKernel,
    PyroKernel,
    UnsmoothedKernel,
    diagnose,
    sgld_direction,
    spos_direction,
    svgd_direction,
)
from probattn.sites.particle_layers import particle_record
from probattn.sites.repulsive import ParticleOptions, repulsive_heads


class _Once(ParticleKernel):
    """A kernel that is computed once: diagnostics reuse its result, or the part of one of several sets."""

    def __init__(self, kernel: ParticleKernel, result: Interaction | None = None) -> None:
        self._kernel, self._result, self.takes_sets = kernel, result, kernel.takes_sets

    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        if self._result is None:
            self._result = self._kernel.interact(particles, grads)
        return self._result

    def of(self, index: int | None) -> _Once:
        """The kernel of one set; None where there is one alone."""
        if index is None:
            return self
        if self._result is None:  # what did not couple the sets is computed of one
            return _Once(self._kernel)
        attraction, repulsion, bandwidth = self._result
        width = None if bandwidth is None else bandwidth[index]
        return _Once(self._kernel, Interaction(attraction[index], repulsion[index], width))


@dataclass
class _Member:
    """One set of particles with what moves it; generator and kernel are made where the particles are."""

    name: str
    number: int
    options: ParticleOptions
    particles: ParticleSet
    generator: torch.Generator | None = None
    kernel: ParticleKernel | None = None
    warned: bool = field(default=False)


GROUP = 2**26
"""Most numbers of the sets of particles that an accelerator moves together."""


class ParticleUpdate:
    r"""Turns gradients of particles, of a mean over N data, into :math:`-\epsilon \phi` (An et al. 2020)."""

    def __init__(
        self,
        sets: Mapping[str, tuple[ParticleOptions, ParticleSet]],
        num_data: int,
        *,
        scale: float = 1.0,
        kernel: SteinKernel | ParticleKernel | None = None,
    ) -> None:
        if num_data < 1:
            raise ValueError(f"{type(self).__name__}.num_data: expected an integer >= 1, got {num_data}")
        self._members = [_Member(name, number, *item) for number, (name, item) in enumerate(sets.items())]
        self._num_data, self._scale, self._override = num_data, scale, kernel
        generator = getattr(kernel, "generator", None)
        self._seed = generator.initial_seed() if isinstance(generator, torch.Generator) else None
        self.diagnostics: dict[str, dict[str, float]] = {}
        """By set of particles: the :class:`probattn.particles.ParticleDiagnostics` of the last measured update."""

    def named_particles(self) -> dict[str, Tensor]:
        """The particles ``[M, N]`` by the name of their set, detached."""
        return {member.name: member.particles.particles() for member in self._members}

    def mean_squared_gradients(self) -> dict[str, float]:
        """Mean square of the particles' gradients as they are, as ``pyro.infer.SVGD.step`` returns it."""
        gradients = {member.name: member.particles.gradients() for member in self._members}
        return {name: float(rows.square().mean()) for name, rows in gradients.items()}

    def configuration(self) -> dict[str, Any]:
        """Settings that a resumed run must share and the model does not determine: a kernel's class and options."""
        return {} if self._override is None else {"kernel": described_object(self._override)}

    @property
    def noisy(self) -> set[str]:
        """Names of the sets whose sampler adds noise."""
        return {member.name for member in self._members if member.options.sampler in ("spos", "sgld")}

    def refuse_sum(self) -> None:
        """Refuses a potential that is a sum over the data where a prior or noise is that of N data beside a mean."""
        for member in self._members:
            what = "noise" if member.name in self.noisy else "prior"
            if what == "noise" or not isinstance(member.options.prior, str):
                raise ValueError(
                    f"{member.name}: its {what} is that of {self._num_data} data beside their mean loss: expected a "
                    "program that observes them in a pyro.plate, got one without, whose loss is a sum"
                )

    @torch.no_grad()
    def direct(self, step: int, *, measure: bool = False) -> None:
        """Replaces the particles' gradients by directions, with the step's noise; ``measure`` fills diagnostics."""
        if measure:
            self.diagnostics = {}
        for group in self._groups():
            members, rows = zip(*group, strict=True)
            first, alone = members[0], len(members) == 1
            particles = _together(rows)
            grads = _together([member.particles.gradients() for member in members])
            kernel = _Once(self._kernel(first, (first.options.seed, step, first.number), particles.device))
            if not isinstance(prior := first.options.prior, str):  # gradients of u include it
                grads = grads + particles.to(grads) / (prior**2 * self._num_data)
            directions = self._direction(first, kernel, particles, grads)
            steps = -first.options.step_size * directions
            copies: list[tuple[Tensor, Tensor]] = []
            for number, member in enumerate(members):
                index = None if alone else number
                if measure:
                    slopes, repulsion = grads if alone else grads[number], self._repulsion(member.options)
                    measured = diagnose(rows[number], slopes, kernel.of(index), repulsion)
                    self._measure(member, measured, rows[number])
                copies += member.particles.targets(steps if alone else steps[number])
            torch._foreach_copy_([gradient for gradient, _ in copies], [direction for _, direction in copies])

    def _groups(self) -> Iterator[list[tuple[_Member, Tensor]]]:
        """Sets that move together, with their particles: on an accelerator those alike, if a kernel takes several."""
        waiting: dict[Any, list[tuple[_Member, Tensor]]] = {}
        for member in self._members:
            rows = member.particles.particles()
            if on_cpu(rows) or not self._takes_sets(member):
                yield [(member, rows)]
                continue
            kind = (member.options, rows.shape, rows.dtype, rows.device)
            group = waiting.setdefault(kind, [])
            group.append((member, rows))
            if (len(group) + 1) * rows.numel() > GROUP:
                yield waiting.pop(kind)
        yield from waiting.values()

    def _takes_sets(self, member: _Member) -> bool:
        return getattr(self._override or member.options.build_kernel(), "takes_sets", False)

    def _repulsion(self, options: ParticleOptions) -> float:
        """The repulsive weight in the scale of u."""
        return options.repulsion / self._scale

    def _direction(self, member: _Member, kernel: ParticleKernel, particles: Tensor, grads: Tensor) -> Tensor:
        options, repulsion = member.options, self._repulsion(member.options)
        if options.sampler == "svgd":
            return svgd_direction(particles, grads, kernel, repulsion)
        temperature = self._num_data if isinstance(options.temperature, str) else options.temperature
        noise: dict[str, Any] = {"step_size": options.step_size, "generator": member.generator}
        noise["inverse_temperature"] = self._num_data / temperature
        if options.sampler == "sgld":
            return sgld_direction(particles, grads, **noise)
        return spos_direction(particles, grads, kernel, repulsion, langevin=options.langevin, **noise)

    def _kernel(self, member: _Member, entropy: tuple[int, int, int], device: torch.device) -> ParticleKernel:
        """The set's kernel, with its generator at this step's place."""
        if member.generator is None or member.generator.device != device:
            member.generator, member.kernel = torch.Generator(device=device), None
        member.generator.manual_seed(derived_seed(*entropy))
        if self._seed is not None:
            generator: Any = vars(self._override)["generator"]
            generator.manual_seed(derived_seed(self._seed, *entropy[1:]))
        if member.kernel is None:
            kernel = self._override or member.options.build_kernel(member.generator)
            member.kernel = kernel if isinstance(kernel, ParticleKernel) else PyroKernel(kernel)
            if self._override is not None and not getattr(member.options, "smoothing", True):
                member.kernel = UnsmoothedKernel(member.kernel)
        return member.kernel

    def _measure(self, member: _Member, measured: ParticleDiagnostics, particles: Tensor) -> None:
        names = ("bandwidth", "repulsion_ratio", "smallest_distance", "relative_distance")
        values = {name: getattr(measured, name) for name in names}
        values["norm"] = float(particles.square().sum(dim=-1).mean().sqrt())
        self.diagnostics[member.name] = {key: value for key, value in values.items() if value is not None}
        # Particles in training are far from equilibrium, where the variance of the posterior is no measure.
        trouble = measured.collapse(least_spread=0.0) if member.options.couples else None
        if trouble is not None and not member.warned:
            member.warned = True
            warnings.warn(f"{member.name}: {trouble}", CollapseWarning, stacklevel=3)


def _together(rows: Sequence[Tensor]) -> Tensor:
    """Sets ``[M, N]`` as one, ``[G, M, N]``; one alone stays as it is."""
    return rows[0] if len(rows) == 1 else torch.stack(list(rows))


def particle_sets(model: nn.Module) -> dict[str, tuple[ParticleOptions, ParticleSet]]:
    """Options and particles of a model by the name of their set: heads by projection, layers together."""
    sets: dict[str, tuple[ParticleOptions, ParticleSet]] = dict(repulsive_heads(model))
    present = particle_record(model)
    if present is not None and present[1].moved:
        net, record = present
        sets["layers"] = (record.method, StackedSet(record.stacks(net)))
    return sets


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
                f"particles: {', '.join(missing)} have no gradient: the loss does not depend on them; leave them out "
                "(parameters=... of a ParticleEnsemble, or requires_grad)"
            )
        return self._rows([p.grad.detach() for p in self.parameters.values() if p.grad is not None])

    def targets(self, directions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parameters' gradients with their blocks of ``directions``."""
        return [(p.grad, block) for p, block in self._blocks(directions) if p.grad is not None]

    @torch.no_grad()
    def assign(self, particles: Tensor) -> None:
        """Gives the particles these values ``[P, N]``."""
        for parameter, block in self._blocks(particles):
            parameter.copy_(block)

    def _blocks(self, rows: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The parameters with their part of rows ``[P, N]``."""
        parameters = list(self.parameters.values())
        blocks = rows.split([parameter[0].numel() for parameter in parameters], dim=1)
        for parameter, block in zip(parameters, blocks, strict=True):
            yield parameter, block.reshape(parameter.shape)

    @staticmethod
    def _rows(stacks: list[Tensor]) -> Tensor:
        rows = [stack.reshape(len(stack), -1) for stack in stacks]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)


ParticleSet = HeadSlices | StackedSet
"""Particles ``[M, N]`` that lie in parameters, and their gradients."""


class HeadParticles(ParticleUpdate):
    r"""Replaces the gradients of repulsive heads by :math:`-\epsilon \phi` (An et al. 2020, Algorithm 1).

    :math:`\phi` is the direction of the sampler in the options and :math:`\epsilon` its step size.
    :class:`probattn.inference.SVGDDriver` uses this class in each update. In a loop of your own call ``direct(step)``
    between ``backward`` and the optimiser's step. There the loss of ``ParticleLayers`` must be that of
    :class:`probattn.inference.AttentionELBO`, because gradients of the network's loss are 1 / P of the particles'. Make
    a new object if the network is converted again.

    Args:
        model: a module with a network converted with :class:`probattn.RepulsiveAttention` or ``ParticleLayers``.
        num_data: N, size of the training data. The potential is the mean loss, so the log density of a normal prior is
            divided by N, and the noise of "spos" and "sgld" is that of N data.
        kernel: a kernel of :mod:`probattn.particles` or Pyro's SVGD; None for the one in the options.

    Raises:
        ValueError: the model has no repulsive heads or layers.

    Example:
        >>> import torch
        >>> import probattn
        >>> from probattn.models import convert
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), probattn.RepulsiveAttention(projections="query")).eval()
        >>> particles = HeadParticles(net, num_data=10)
        >>> {name: list(heads.shape) for name, heads in particles.named_particles().items()}
        {'encoder.layer.0.attention.self.query': [2, 32]}
        >>> net(torch.ones(1, 3, dtype=torch.long)).last_hidden_state.sum().backward()
        >>> particles.direct(step=0)
    """

    def __init__(
        self, model: nn.Module, num_data: int, kernel: SteinKernel | ParticleKernel | None = None
    ) -> None:
        sets = particle_sets(model)
        if not sets and particle_record(model) is not None:
            raise ValueError(
                f"HeadParticles: the particles of layers of {type(model).__name__} are trained by their losses alone "
                "(no sampler, or repulsion of predictions); train with probattn.inference.SVIDriver"
            )
        if not sets:
            raise ValueError(
                f"HeadParticles: {type(model).__name__} has no repulsive heads, nor layers as particles that repel; "
                "convert(net, RepulsiveAttention()) first, or take the heads of a module of your own from "
                "probattn.particles.head_slices"
            )
        super().__init__(sets, num_data, kernel=kernel)
