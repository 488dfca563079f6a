"""Gradients of a potential become directions of particles before the optimiser sees them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.particles import (
    CollapseWarning,
    Interaction,
    ParticleDiagnostics,
    ParticleKernel,
    PyroKernel,
    diagnose,
    sgld_direction,
    spos_direction,
    svgd_direction,
)
from probattn.sites.particle_options import ParticleOptions


class ParticleSet(Protocol):
    """Particles ``[M, N]`` that lie in parameters, and their gradients."""

    def particles(self) -> Tensor:
        """The particles ``[M, N]``, detached."""

    def gradients(self) -> Tensor:
        """Their gradients ``[M, N]``, detached."""

    def write(self, directions: Tensor, step_size: float) -> None:
        r"""Makes the gradients :math:`-\epsilon \phi`."""


class _Once(ParticleKernel):
    """A kernel that is asked once: what it answered stands where diagnostics ask again."""

    def __init__(self, kernel: ParticleKernel) -> None:
        self._kernel = kernel
        self._found: Interaction | None = None

    def interact(self, particles: Tensor, grads: Tensor) -> Interaction:
        if self._found is None:
            self._found = self._kernel.interact(particles, grads)
        return self._found


@dataclass
class _Member:
    """One set of particles with what moves it; generator and kernel are made where the particles are."""

    options: ParticleOptions
    particles: ParticleSet
    generator: torch.Generator | None = None
    kernel: ParticleKernel | None = None
    warned: bool = field(default=False)


class ParticleUpdate:
    r"""Turns gradients of particles into :math:`-\epsilon \phi` (An et al. 2020, Algorithm 1).

    Gradients are those of a mean u over N data. With a scale s the potential is

    .. math:: U(\theta) = s\, u(\theta) + \frac{s}{N} \frac{|\theta|^2}{2 \sigma^2},

    and repulsion and inverse temperature are those of U. Steps are in the scale of u, :math:`\epsilon \phi / s` with
    :math:`\phi` of U: a repulsion of 1 is one of 1 / s there, and without repulsion s changes nothing.

    Args:
        sets: options and particles by name of the set; they stay the same for good.
        num_data: N.
        scale: s.
        kernel: any kernel that Pyro's engine takes, in place of those that the options name.

    Raises:
        ValueError: fewer than one datum.
    """

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
        self._members = {name: _Member(*member) for name, member in sets.items()}
        self._scale = scale
        self._num_data = num_data
        self._given = kernel
        self.diagnostics: dict[str, dict[str, float]] = {}
        """By set of particles: the :class:`probattn.particles.ParticleDiagnostics` of the last measured update."""

    def named_particles(self) -> dict[str, Tensor]:
        """The particles ``[M, N]`` by the name of their set, detached."""
        return {name: member.particles.particles() for name, member in self._members.items()}

    def mean_squared_gradients(self) -> dict[str, float]:
        """Mean square of the particles' gradients as they are, as ``pyro.infer.SVGD.step`` returns it."""
        return {
            name: float(member.particles.gradients().square().mean())
            for name, member in self._members.items()
        }

    def configuration(self) -> dict[str, Any]:
        """What a resumed run must find again and the model does not say."""
        return {}

    @torch.no_grad()
    def direct(self, step: int, *, measure: bool = False) -> None:
        """Replaces the particles' gradients by their directions; other gradients stay.

        Args:
            step: number of the update; with the options' seed it gives the noise.
            measure: whether to fill :attr:`diagnostics`, and to warn where particles coincide.

        Raises:
            ValueError: a particle has no gradient.
        """
        if measure:
            self.diagnostics = {}
        for number, (name, member) in enumerate(self._members.items()):
            particles, grads = member.particles.particles(), member.particles.gradients()
            kernel = _Once(self._kernel(member, (member.options.seed, step, number), particles.device))
            # SPOS alone has two terms whose scales differ; the others need no other scale than that of u.
            scale = self._scale if member.options.sampler == "spos" else 1.0
            grads = self._potential(member.options, particles, grads, scale)
            direction = self._direction(member, kernel, particles, grads, scale)
            if measure:
                self._measure(
                    name,
                    member,
                    diagnose(particles, grads, kernel, self._repulsion(member, scale)),
                    particles,
                )
            member.particles.write(direction, member.options.step_size / scale)

    def _potential(self, options: ParticleOptions, particles: Tensor, grads: Tensor, scale: float) -> Tensor:
        """Gradients of ``scale`` times u and prior."""
        if not isinstance(options.prior, str):
            grads = grads + particles.to(grads) / (options.prior**2 * self._num_data)
        return grads if scale == 1 else grads * scale

    def _repulsion(self, member: _Member, scale: float) -> float:
        """The repulsive weight in a scale of the potential."""
        return member.options.repulsion * scale / self._scale

    def _direction(
        self, member: _Member, kernel: ParticleKernel, particles: Tensor, grads: Tensor, scale: float
    ) -> Tensor:
        options = member.options
        if options.sampler == "svgd":
            return svgd_direction(particles, grads, kernel, self._repulsion(member, scale))
        default = self._num_data / self._scale
        temperature = default if options.inverse_temperature is None else options.inverse_temperature
        noise: dict[str, Any] = {"step_size": options.step_size / scale, "generator": member.generator}
        if options.sampler == "sgld":
            return sgld_direction(particles, grads, inverse_temperature=temperature * self._scale, **noise)
        weight = self._repulsion(member, scale)
        return spos_direction(particles, grads, kernel, weight, inverse_temperature=temperature, **noise)

    def _kernel(self, member: _Member, entropy: tuple[int, int, int], device: torch.device) -> ParticleKernel:
        """The set's kernel, with its generator at this step's place."""
        if member.generator is None or member.generator.device != device:
            member.generator, member.kernel = torch.Generator(device=device), None
        state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        member.generator.manual_seed(int(state[0] >> np.uint64(1)))
        if member.kernel is None:
            given = member.options.build_kernel(member.generator) if self._given is None else self._given
            member.kernel = given if isinstance(given, ParticleKernel) else PyroKernel(given)
        return member.kernel

    def _measure(self, name: str, member: _Member, found: ParticleDiagnostics, particles: Tensor) -> None:
        values = {
            "bandwidth": found.bandwidth,
            "repulsion_ratio": found.repulsion_ratio,
            "smallest_distance": found.smallest_distance,
            "relative_distance": found.relative_distance,
            "norm": float(particles.square().sum(dim=-1).mean().sqrt()),
        }
        self.diagnostics[name] = {key: value for key, value in values.items() if value is not None}
        # Particles in training are far from equilibrium, where the variance of the posterior says nothing.
        trouble = found.collapse(least_spread=0.0) if member.options.couples else None
        if trouble is not None and not member.warned:
            member.warned = True
            warnings.warn(f"{name}: {trouble}", CollapseWarning, stacklevel=3)
