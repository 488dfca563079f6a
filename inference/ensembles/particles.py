"""Whole models as particles: options, each particle's own loss and gradient, and their update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal, cast

import pyro
import torch
from pyro.infer.svgd import SteinKernel
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.func import functional_call

from probattn.first_order import with_gradients
from probattn.inference.elbo import AttentionELBOModule, ELBOTerms
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.particle_update import ParticleUpdate, StackedSet
from probattn.options import Count, NonNegative, Positive
from probattn.particles import ParticleKernel
from probattn.sites.alignment import AlignmentFactor
from probattn.sites.handlers import SHARED_STATE
from probattn.sites.repulsive import ParticleOptions

Sets = Literal["model", "module", "parameter"]
WHAT = "objective"


@dataclass(frozen=True)
class EnsembleOptions(ParticleOptions):
    r"""Options of the particles of a :class:`ParticleEnsemble` and of their updates.

    The potential is :math:`U(\theta) = N u(\theta) + |\theta|^2 / (2 \sigma^2)`, with u the mean loss over N data of
    :class:`SVGDDriver`, so with ``repulsion=1`` particles represent the posterior, proportional to :math:`\exp(-U)`.
    (In :class:`probattn.RepulsiveAttention` u itself is the potential; there 1 / N gives the posterior.) The optimiser
    gets :math:`-\epsilon \phi / N` instead of the gradient of u, so learning rates are as in usual training.

    Args:
        sampler: "svgd", "spos" (SVGD with Langevin noise) or "sgld" (noise without repulsion). With SGD of
            learning rate 1 without momentum or schedule, "sgld" has the posterior's variance, "spos" slightly less.
        step_size: epsilon > 0, factor of the direction. It has no effect with Adam and similar optimisers on "svgd".
        repulsion: weight a >= 0 of the repulsion. With another value than 1 the particles represent exp(-U / a).
        kernel: name of a kernel between particles, as in :class:`probattn.RepulsiveAttention`. In many dimensions the
            particles' variance is too small, with "sliced_rbf" less so than with "median_rbf".
        bandwidth: bandwidth of the kernel, > 0; None for the kernel's rule.
        offset: constant added to the kernel "cosine", >= 0; None for 1.
        prior: "uniform", or the standard deviation sigma > 0 of a normal prior around 0 of every stacked parameter.
            Write other priors as factors of the model. Weight decay of the optimiser acts as a further prior.
        temperature: T > 0 of the noise of "spos" and "sgld", for exp(-U / T): 1 is the posterior, "datum" is T = N.
        langevin: weight w > 0 of the Langevin term in "spos" against the SVGD term; 1 / beta in Eq. 5 of An et al.
        seed: seed of the noise, >= 0.
        sets: parameters that form one particle: "model" (all stacked parameters), or those of each "module" or each
            "parameter", which are then separate sets of particles.
        num_data: N; None for the size of the training data. Set 1 for a model without plate, whose loss is a sum.

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
        """Options without interaction of particles: a deep ensemble (Lakshminarayanan et al. 2017).

        Each particle follows the gradient of its loss, as if it were trained alone.

        Args:
            num_particles: P of the ensemble; it is the step size, which cancels the mean over particles in SVGD.

        Example:
            >>> EnsembleOptions.independent(5).couples
            False
        """
        return cls(kernel="identity", repulsion=0.0, step_size=float(num_particles))


class EnsembleParticles(ParticleUpdate):
    r"""Replaces the gradients of an ensemble's particles by :math:`-\epsilon \phi / N`.

    The networks of alignment attention (discriminators, critics) are trained against the loss and have no posterior:
    each particle has its copy of them, which follows its gradient unchanged.

    Args:
        ensemble: the particles.
        options: options of the particles.
        num_data: N, size of the training data; ``options.num_data`` has precedence.
        kernel: a kernel of :mod:`probattn.particles` or Pyro's SVGD; None for the one in the options.
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
        """Mean square of the gradient of each stacked parameter, by its name."""
        grads = {name: parameter.grad for name, parameter in self._ensemble.stacked_parameters().items()}
        return {name: float(grad.square().mean()) for name, grad in grads.items() if grad is not None}

    def configuration(self) -> dict[str, Any]:
        """Settings that must be the same when a run is resumed: the options and the kernel."""
        return {"ensemble": asdict(self._options), **super().configuration()}


def _sets(ensemble: ParticleEnsemble, kind: Sets) -> dict[str, dict[str, nn.Parameter]]:
    apart = [name for name, module in ensemble.model.named_modules() if isinstance(module, AlignmentFactor)]
    sets: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in ensemble.stacked_parameters().items():
        if not any(name.startswith(f"{prefix}.") for prefix in apart):
            owner = {"model": "model", "module": name.rpartition(".")[0] or "model", "parameter": name}[kind]
            sets.setdefault(owner, {})[name] = parameter
    return sets


class _ParticleValues(Messenger):
    """Answers ``pyro.param`` with the tensor it is given: a particle's, which no store must keep for the next one."""

    def _pyro_param(self, msg: Message) -> None:
        args = cast(tuple[Any, ...], msg["args"])
        if len(args) > 1 and isinstance(args[1], Tensor):
            msg["value"], msg["done"], msg["stop"] = args[1], True, True


class _Program(nn.Module):
    """The parts of one particle's objective as one tensor ``[5]``."""

    def __init__(self, objective: AttentionELBOModule) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, batch: Any) -> Tensor:
        with SHARED_STATE.changed() as changes, _ParticleValues():
            changes.enter_context(pyro.get_param_store().scope())
            return torch.stack(list(self.objective.terms(batch)))


class EnsembleObjective(nn.Module):
    r"""The loss of an ensemble, :math:`\frac1P \sum_i u(\theta_i)`, with gradients that are the particles' own.

    ``backward`` gives row i of a stack :math:`\nabla u(\theta_i)`, as if particle i were alone, and what particles
    share the gradient of the mean. Gradients are computed chunk by chunk in the forward pass, so that the activations
    of one chunk stand in memory at a time.

    Args:
        ensemble: the particles.
        objective: the ELBO of ``ensemble.model``.
    """

    def __init__(self, ensemble: ParticleEnsemble, objective: AttentionELBOModule) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.program = _Program(objective)
        self._buffers_checked = False

    def forward(self, batch: Any) -> ELBOTerms:
        """The terms, means over particles.

        Raises:
            ValueError: the forward pass changes a buffer that particles share; or what the ELBO raises.
        """
        ensemble, execution = self.ensemble, self.ensemble.execution

        def one(rows: Mapping[str, Tensor]) -> Tensor:
            tensors = {f"objective.model.{name}": row for name, row in rows.items()}
            return functional_call(self.program, tensors, (batch,))

        stacks = ensemble.stacks()
        execution.settle(WHAT, ensemble, stacks, one)
        versions = self._buffer_versions() if self.training and not self._buffers_checked else {}
        parameters = ensemble.stacked_parameters()
        stacked = {id(stack) for stack in parameters.values()}
        shared = [p for p in self.parameters() if p.requires_grad and id(p) not in stacked]
        values: list[Tensor] = []
        pieces: list[Sequence[Tensor | None]] = []
        graded = torch.is_grad_enabled()
        for chunk in execution.chunks(WHAT, stacks):
            leaves = {name: chunk[name].detach().requires_grad_(graded) for name in parameters}
            terms = execution.chunk(WHAT, chunk | leaves, one)  # [chunk, 5]
            if graded:
                inputs = [*leaves.values(), *shared]
                pieces.append(torch.autograd.grad(terms[:, 0].sum(), inputs, allow_unused=True))
            values.append(terms.detach())
        self._require_unchanged(versions)
        means = torch.cat(values).mean(dim=0)
        terms_of_all = ELBOTerms(*means.unbind())
        if not graded:
            return terms_of_all
        gradients = _gathered(pieces, len(parameters), [len(chunk) for chunk in values])
        loss = with_gradients(terms_of_all.loss, [*parameters.values(), *shared], gradients)
        return terms_of_all._replace(loss=loss)

    def diagnostics(self) -> dict[str, dict[str, float]]:
        """Health of the attention sites' posterior in the last particle that ran, per site."""
        return self.program.objective.diagnostics()

    def _buffer_versions(self) -> dict[str, int]:
        """Of the buffers that particles share."""
        buffers, stacked = self.ensemble.model.named_buffers(), self.ensemble.buffer_names
        return {name: buffer._version for name, buffer in buffers if name not in stacked}

    def _require_unchanged(self, versions: Mapping[str, int]) -> None:
        """Once, in training."""
        after = self._buffer_versions() if versions else {}
        changed = [name for name, version in versions.items() if after[name] != version]
        if changed:
            raise ValueError(
                f"ParticleEnsemble: training changes the buffers {', '.join(changed)}, which all particles share; give "
                f"each its own with buffers={changed!r}"
            )
        self._buffers_checked = self._buffers_checked or self.training


def _gathered(
    pieces: Sequence[Sequence[Tensor | None]], stacked: int, sizes: Sequence[int]
) -> list[Tensor | None]:
    """Rows of chunks of these sizes as stacks; of what is shared the mean over particles."""
    gathered: list[Tensor | None] = []
    for position, chunks in enumerate(zip(*pieces, strict=True)):
        gradients = [gradient for gradient in chunks if gradient is not None]
        if not gradients:
            gathered.append(None)
        elif position < stacked:
            rest = gradients[0].shape[1:]  # a particle that branches past a parameter has gradient 0
            rows = [
                gradients[0].new_zeros(size, *rest) if gradient is None else gradient
                for gradient, size in zip(chunks, sizes, strict=True)
            ]
            gathered.append(torch.cat(rows))
        else:
            gathered.append(torch.stack(gradients).sum(dim=0) / sum(sizes))
    return gathered
