"""Tensors of one model as stacks, a row for each particle, and functions of a particle run for all of them."""

from __future__ import annotations

import copy
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import pyro
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _NormBase

from probattn.checks import check_choice, check_integer
from probattn.host import at_least_float32
from probattn.inference.session import evaluating, preserved_random_state
from probattn.sites.alignment import AlignmentFactor
from probattn.sites.particle_layers import particle_count
from probattn.sites.repulsive import repulsive_heads
from probattn.sites.scores import exact_products
from probattn.sites.site import LatentSite

OWNER = "ParticleEnsemble"

Choice = str | Sequence[str] | Callable[[str, Tensor], bool]
"""Names with wildcards, or a function of name and tensor."""

Model = TypeVar("Model", bound=nn.Module)

ExecutionName = Literal["auto", "vectorized", "loop"]
OneParticle = Callable[[Mapping[str, Tensor]], Tensor]
"""From one particle's parameters and buffers by name to a tensor."""

TOLERANCE = 1e-4
"""Largest relative difference between both ways of running that counts as rounding, in the parameters' own type."""

LOW_TOLERANCE = 5e-2
"""The same in half precision and under autocast."""


class Execution:
    """Runs a function of one particle for all of them; the options are :class:`ParticleEnsemble`'s."""

    def __init__(self, choice: ExecutionName, chunk_size: int | None) -> None:
        check_choice(OWNER, "execution", choice, ExecutionName)
        if chunk_size is not None:
            check_integer(OWNER, "chunk_size", chunk_size, minimum=1)
        self.choice = choice
        self.chunk_size = chunk_size
        self.taken: dict[str, str] = {}

    def run(self, what: str, owner: nn.Module, stacks: Mapping[str, Tensor], one: OneParticle) -> Tensor:
        """Values of all particles ``[P, ...]``; ``what`` names the function, whose way of running is found once."""
        self.settle(what, owner, stacks, one)
        return torch.cat([self.chunk(what, chunk, one) for chunk in self.chunks(what, stacks)])

    def settle(self, what: str, owner: nn.Module, stacks: Mapping[str, Tensor], one: OneParticle) -> None:
        """Finds out how ``what`` runs, if that is not known yet; ``owner`` holds everything that it runs."""
        if what not in self.taken:
            self.taken[what] = self.choice if self.choice != "auto" else _choose_execution(owner, stacks, one)

    def chunks(self, what: str, stacks: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """The stacks in the chunks in which ``what`` runs, views."""
        count = len(next(iter(stacks.values())))
        size = (self.chunk_size or count) if self.taken[what] == "vectorized" else 1
        for start in range(0, count, size):
            yield {name: stack[start : start + size] for name, stack in stacks.items()}

    def chunk(self, what: str, stacks: Mapping[str, Tensor], one: OneParticle) -> Tensor:
        """Values of the particles of one chunk."""
        return _values(stacks, one, vectorized=self.taken[what] == "vectorized")


def _values(stacks: Mapping[str, Tensor], one: OneParticle, *, vectorized: bool) -> Tensor:
    with warnings.catch_warnings():  # that vmap loops over operations, that Pyro misses rows in its store
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message=".* was not registered in the param store")
        if vectorized:
            # Pyro's validation looks at values, which have no numbers inside vmap.
            with pyro.validation_enabled(False):
                return vmap(one, randomness="different")(dict(stacks))
        count = len(next(iter(stacks.values())))
        return torch.stack([one({name: stack[i] for name, stack in stacks.items()}) for i in range(count)])


def _choose_execution(owner: nn.Module, stacks: Mapping[str, Tensor], one: OneParticle) -> str:
    """Runs everything both ways without a trace in weights, buffers or generators; what to take, with the reason."""
    if any(isinstance(module, LatentSite) for module in owner.modules()):
        return "loop: attention is latent, and its draws are made particle by particle"
    trained = [name for name, stack in stacks.items() if isinstance(stack, nn.Parameter)]
    stacks = {name: stack.detach().clone() for name, stack in stacks.items()}
    training, graded = owner.training, torch.is_grad_enabled()
    device = next(iter(stacks.values())).device
    # Without either, another thread alone may draw, whose numbers are not to come again.
    state = preserved_random_state(device) if training or graded else nullcontext()
    with state, exact_products():
        with evaluating(owner):
            apart = _values(stacks, one, vectorized=False)
        try:
            with evaluating(owner):
                together = _values(stacks, one, vectorized=True)
            if training or graded:
                _try_training({name: stacks[name] for name in trained}, stacks, one)
        except (RuntimeError, ValueError, TypeError) as error:
            # All that vmap refuses a program with, or the program itself within it. The loop has run by now, so the
            # program is sound; the reason is kept where the user can read it.
            return f"loop: torch.func.vmap cannot run it ({textwrap.shorten(str(error), 160)})"
    low = apart.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(device.type)
    tolerance = LOW_TOLERANCE if low else TOLERANCE
    if not torch.allclose(together, apart, rtol=tolerance, atol=tolerance, equal_nan=True):
        difference = float((together - apart).abs().max())
        return f"loop: vectorised values differ by up to {difference:.3g}"
    return "vectorized"


def _try_training(trained: Mapping[str, Tensor], stacks: Mapping[str, Tensor], one: OneParticle) -> None:
    """A vectorised pass in the mode that the module is in, and back where gradients are on."""
    leaves = {name: stack.requires_grad_() for name, stack in trained.items()}
    total = _values({**stacks, **leaves}, one, vectorized=True).sum()
    if total.requires_grad:
        torch.autograd.grad(total, list(leaves.values()), allow_unused=True)


def check_model(model: nn.Module) -> None:
    """Raises unless the model can be a particle."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{OWNER}.model: expected a torch.nn.Module, got {type(model).__name__}")
    if repulsive_heads(model) or particle_count(model) is not None:
        what = "heads are particles (RepulsiveAttention)"
        what = what if repulsive_heads(model) else "layers are particles (ParticleLayers)"
        raise ValueError(
            f"{OWNER}.model: its {what}, so it cannot be a particle itself; give a network without that method"
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
    buffers = dict(model.named_buffers())
    also = {name for name, buffer in buffers.items() if choice is not None and _selects(choice, name, buffer)}
    return {name: buffer for name, buffer in buffers.items() if id(buffer) in ids or name in also}


def perturbed(parameter: Tensor, count: int, spread: float, generator: torch.Generator) -> Tensor:
    """Rows around one parameter ``[P, ...]``."""
    value = parameter.detach()
    wide = at_least_float32(value)
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
