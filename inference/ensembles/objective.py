"""The objective of an ensemble: every particle's own loss and gradient, in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.func import functional_call

from probattn.first_order import with_gradients
from probattn.inference.elbo import AttentionELBOModule, ELBOTerms
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.sites.threads import SHARED_STATE

WHAT = "objective"


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
        versions = self._versions()
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
        gradients = _gathered(pieces, len(parameters), ensemble.num_particles)
        loss = with_gradients(terms_of_all.loss, [*parameters.values(), *shared], gradients)
        return terms_of_all._replace(loss=loss)

    def diagnostics(self) -> dict[str, dict[str, float]]:
        """Health of the attention sites' posterior in the last particle that ran, per site."""
        return self.program.objective.diagnostics()

    def _versions(self) -> dict[str, int]:
        if self._buffers_checked or not self.training:
            return {}
        stacked = set(self.ensemble.buffer_names)
        return {
            name: buffer._version
            for name, buffer in self.ensemble.model.named_buffers()
            if name not in stacked
        }

    def _require_unchanged(self, versions: Mapping[str, int]) -> None:
        """Once, in training."""
        changed = [
            name
            for name, version in versions.items()
            if self.ensemble.model.get_buffer(name)._version != version
        ]
        if changed:
            raise ValueError(
                f"ParticleEnsemble: training changes the buffers {', '.join(changed)}, which all particles share; give "
                f"each its own with buffers={changed!r}"
            )
        self._buffers_checked = self._buffers_checked or self.training


def _gathered(pieces: Sequence[Sequence[Tensor | None]], stacked: int, count: int) -> list[Tensor | None]:
    """Rows of all chunks as stacks; of what is shared the mean over particles."""
    gathered: list[Tensor | None] = []
    for position, chunks in enumerate(zip(*pieces, strict=True)):
        gradients = [gradient for gradient in chunks if gradient is not None]
        if not gradients:
            gathered.append(None)
        elif position < stacked:
            gathered.append(torch.cat(gradients))
        else:
            gathered.append(torch.stack(gradients).sum(dim=0) / count)
    return gathered
