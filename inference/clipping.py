"""Clipping of gradients: together, but alignment's networks and the particles of an ensemble each for themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from probattn.inference.optimizers import split_alignment, stacked_parameters


class Clipped:
    """Parameters that are clipped by one joint norm, or, as stacks, by one for each particle.

    Args:
        parameters: plain ones ``[...]``, or stacks ``[P, ...]``.
        stacked: whether they are stacks.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, stacked: bool) -> None:
        self._parameters = parameters
        self._stacked = stacked
        self._norms = torch.zeros(())

    def measure(self) -> Tensor:
        """Measures the gradients; the norm, over particles the root of the mean of its square."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not self._stacked or not gradients:
            self._norms = get_total_norm(gradients)
            return self._norms
        norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in map(_matrix, gradients)]
        self._norms = torch.linalg.vector_norm(torch.stack(norms), dim=0)  # [P]
        return self._norms.square().mean().sqrt()

    @torch.no_grad()
    def clip(self, limit: float) -> None:
        """Shortens gradients whose norm, as measured, is above ``limit``."""
        if not self._stacked:
            clip_grads_with_norm_(self._parameters, limit, self._norms)
            return
        factors = (limit / (self._norms + 1e-6)).clamp(max=1.0)  # as torch has it
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factors.to(parameter.grad).view(-1, *[1] * (parameter.dim() - 1)))


class Clipping:
    """What of a module is clipped together.

    Args:
        module: holds the trainable parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        stacks = stacked_parameters(module)
        self._main, self._alignment = (_groups(part, stacks) for part in split_alignment(module))

    def measure(self) -> tuple[Tensor, Tensor]:
        """Norms of all gradients but alignment's networks', and of theirs."""
        return _joint(self._main), _joint(self._alignment)

    def clip(self, limit: float) -> None:
        """Shortens what is longer than ``limit``, as last measured."""
        for group in (*self._main, *self._alignment):
            group.clip(limit)


def _groups(parameters: Sequence[nn.Parameter], stacks: set[int]) -> list[Clipped]:
    parts = [[p for p in parameters if (id(p) in stacks) == stacked] for stacked in (False, True)]
    return [Clipped(part, stacked=bool(number)) for number, part in enumerate(parts) if part]


def _joint(groups: Sequence[Clipped]) -> Tensor:
    norms = [group.measure() for group in groups]
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _matrix(gradient: Tensor) -> Tensor:
    return gradient if gradient.dim() > 1 else gradient.unsqueeze(1)
