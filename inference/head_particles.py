"""Attention heads as particles: gradients of a potential become directions before the optimiser sees them."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from pyro.infer.svgd import SteinKernel
from torch import Tensor, nn

from probattn.particles import (
    CollapseWarning,
    ParticleKernel,
    PyroKernel,
    diagnose,
    sgld_direction,
    spos_direction,
    svgd_direction,
)
from probattn.sites.repulsive import RepulsiveAttention, repulsive_heads


class HeadParticles:
    r"""Turns the gradients of repulsive heads into :math:`-\epsilon \phi` (An et al. 2020, Algorithm 1).

    :class:`probattn.inference.SVGDDriver` does so in each update; in a loop of one's own :meth:`direct` stands between
    ``backward`` and the optimiser's step. Nothing of the network is copied.

    Args:
        model: a module that is, or holds, a network converted with :class:`probattn.RepulsiveAttention`.
        num_data: N, size of the training data: the potential is the mean loss, so a normal prior enters it over N, and
            N is the default inverse temperature of the noise.
        kernel: any kernel that Pyro's engine takes, in place of the one that the options name.

    Raises:
        ValueError: the model has no repulsive heads.

    Example:
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
        if num_data < 1:
            raise ValueError(f"HeadParticles.num_data: expected an integer >= 1, got {num_data}")
        self._model = model
        self._num_data = num_data
        self._given = kernel
        self._warned: set[str] = set()
        self.diagnostics: dict[str, dict[str, float]] = {}
        """By set of particles: the :class:`probattn.particles.ParticleDiagnostics` of the last measured update."""
        if not repulsive_heads(model):
            raise ValueError(
                f"HeadParticles: {type(model).__name__} has no repulsive heads; convert(net, RepulsiveAttention()) "
                "first"
            )

    def named_particles(self) -> dict[str, Tensor]:
        """The heads ``[H, D * E]`` by the name of their attention call and projection, detached."""
        return {name: heads.particles() for name, (_, heads) in repulsive_heads(self._model).items()}

    @torch.no_grad()
    def direct(self, step: int, *, measure: bool = False) -> None:
        """Replaces the heads' gradients by their directions; other gradients stay.

        Args:
            step: number of the update; with the options' seed it gives the noise.
            measure: whether to fill :attr:`diagnostics`, and to warn where particles coincide.

        Raises:
            ValueError: a head's weight has no gradient.
        """
        if measure:
            self.diagnostics = {}
        for number, (name, (method, heads)) in enumerate(repulsive_heads(self._model).items()):
            generator = _generator((method.seed, step, number), heads.parameter.device)
            kernel = self._kernel(method, generator)
            particles, grads = heads.particles(), heads.gradients()
            if not isinstance(method.prior, str):
                grads = grads + particles.to(grads) / (method.prior**2 * self._num_data)
            if measure:
                self._measure(name, particles, grads, kernel, method)
            direction = self._direction(method, kernel, particles, grads, generator)
            heads.write(direction, method.step_size)

    def _direction(
        self,
        method: RepulsiveAttention,
        kernel: ParticleKernel,
        particles: Tensor,
        grads: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        if method.sampler == "svgd":
            return svgd_direction(particles, grads, kernel, method.repulsion)
        temperature = self._num_data if method.inverse_temperature is None else method.inverse_temperature
        options = {"inverse_temperature": float(temperature), "step_size": method.step_size}
        if method.sampler == "sgld":
            return sgld_direction(particles, grads, **options, generator=generator)
        return spos_direction(particles, grads, kernel, method.repulsion, **options, generator=generator)

    def _kernel(self, method: RepulsiveAttention, generator: torch.Generator) -> ParticleKernel:
        if self._given is None:
            return method.build_kernel(generator)
        return self._given if isinstance(self._given, ParticleKernel) else PyroKernel(self._given)

    def _measure(
        self, name: str, particles: Tensor, grads: Tensor, kernel: ParticleKernel, method: RepulsiveAttention
    ) -> None:
        found = diagnose(particles, grads, kernel, method.repulsion)
        values = {
            "bandwidth": found.bandwidth,
            "repulsion_ratio": found.repulsion_ratio,
            "smallest_distance": found.smallest_distance,
            "relative_distance": found.relative_distance,
            "norm": float(particles.square().sum(dim=-1).mean().sqrt()),
        }
        self.diagnostics[name] = {key: value for key, value in values.items() if value is not None}
        # Heads in training are far from equilibrium, where the variance of the posterior says nothing.
        trouble = found.collapse(least_spread=0.0) if method.couples else None
        if trouble is not None and name not in self._warned:
            self._warned.add(name)
            warnings.warn(f"{name}: {trouble}", CollapseWarning, stacklevel=2)


def _generator(entropy: tuple[int, int, int], device: torch.device) -> torch.Generator:
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return torch.Generator(device=device).manual_seed(int(state[0] >> np.uint64(1)))
