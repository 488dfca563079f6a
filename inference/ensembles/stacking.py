"""Tensors of one model as stacks, a row for each particle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from probattn.sites.alignment_factor import AlignmentFactor
from probattn.sites.repulsive import repulsive_heads

OWNER = "ParticleEnsemble"

Choice = str | Sequence[str] | Callable[[str, Tensor], bool]
"""Names with wildcards, or a function of name and tensor."""

Model = TypeVar("Model", bound=nn.Module)


def check_model(model: nn.Module) -> None:
    """Raises unless the model can be a particle."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{OWNER}.model: expected a torch.nn.Module, got {type(model).__name__}")
    if repulsive_heads(model):
        raise ValueError(
            f"{OWNER}.model: its heads are particles (RepulsiveAttention), so it cannot be a particle itself; give a "
            "network without that method"
        )


def _selects(choice: Choice, name: str, tensor: Tensor) -> bool:
    if callable(choice):
        return choice(name, tensor)
    patterns = (choice,) if isinstance(choice, str) else choice
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def selected_parameters(model: nn.Module, choice: Choice | None) -> dict[str, Tensor]:
    """Trainable parameters that particles have of their own."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    selected: dict[str, Tensor] = {
        name: p for name, p in trainable.items() if choice is None or _selects(choice, name, p)
    }
    if not selected:
        available = ", ".join(list(trainable)[:8]) or "none"
        raise ValueError(
            f"{OWNER}.parameters: expected some of the trainable parameters ({available}), got none"
        )
    return selected


def selected_buffers(model: nn.Module, choice: Choice | None) -> dict[str, Tensor]:
    """Buffers that particles have of their own: what training changes in known modules, and what is asked for."""
    learning = [module for module in model.modules() if isinstance(module, (_NormBase, AlignmentFactor))]
    ids = {id(buffer) for module in learning for buffer in module.buffers()}
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if id(buffer) in ids or (choice is not None and _selects(choice, name, buffer))
    }


def perturbed(parameter: Tensor, count: int, spread: float, generator: torch.Generator) -> Tensor:
    """Rows around one parameter ``[P, ...]``."""
    value = parameter.detach()
    wide = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    size = wide.square().mean().sqrt()
    noise = torch.randn((count, *value.shape), generator=generator, dtype=wide.dtype).to(value.device)
    return (wide + spread * torch.where(size > 0, size, 1.0) * noise).to(value.dtype)


def repeated(tensor: Tensor, count: int) -> Tensor:
    """Equal rows ``[P, ...]``."""
    return tensor.detach().unsqueeze(0).repeat(count, *[1] * tensor.dim())


def rows_of(
    initial: Callable[[int], nn.Module], count: int, selected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Rows ``[P, ...]`` of the chosen tensors, from one model after another."""
    if not callable(initial):
        raise TypeError(
            f'{OWNER}.initial: expected "perturb" or a function of the particle\'s number, got {initial!r}'
        )
    rows = {name: repeated(tensor, count) for name, tensor in selected.items()}
    for index in range(count):
        model = initial(index)
        if not isinstance(model, nn.Module):
            raise TypeError(f"{OWNER}.initial: expected a torch.nn.Module, got {type(model).__name__}")
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, stack in rows.items():
            if name not in tensors or tensors[name].shape != stack.shape[1:]:
                shape = list(tensors[name].shape) if name in tensors else "nothing"
                raise ValueError(
                    f"{OWNER}.initial: particle {index}: expected {name} {list(stack.shape[1:])}, got {shape}"
                )
            stack[index] = tensors[name].detach()
    return rows


def copied(model: Model, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Model:
    """A copy of a model with other tensors in the places of old ones, tied places included."""
    memo: dict[int, Any] = {id(tensor): new[name] for name, tensor in old.items()}
    return copy.deepcopy(model, memo)
