"""Execution of an ensemble's particles: in one pass, in chunks, or one after another."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Literal

import pyro
import torch
from torch import Tensor, nn
from torch.func import vmap

from probattn.checks import check_choice, check_integer
from probattn.inference.session import evaluating, preserved_random_state
from probattn.sites.scores import exact_products
from probattn.sites.site import LatentSite

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
        check_choice("ParticleEnsemble", "execution", choice, ExecutionName)
        if chunk_size is not None:
            check_integer("ParticleEnsemble", "chunk_size", chunk_size, minimum=1)
        self.choice = choice
        self.chunk_size = chunk_size
        self.taken: dict[str, str] = {}

    def run(self, what: str, owner: nn.Module, stacks: Mapping[str, Tensor], one: OneParticle) -> Tensor:
        """Values of all particles ``[P, ...]``; ``what`` names the function, whose way of running is found once."""
        self.settle(what, owner, stacks, one)
        return torch.cat([self.chunk(what, part, one) for part in self.parts(what, stacks)])

    def settle(self, what: str, owner: nn.Module, stacks: Mapping[str, Tensor], one: OneParticle) -> None:
        """Finds out how ``what`` runs, if that is not known yet; ``owner`` holds everything that it runs."""
        if what not in self.taken:
            self.taken[what] = self.choice if self.choice != "auto" else _choose_execution(owner, stacks, one)

    def parts(self, what: str, stacks: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """The stacks in the chunks in which ``what`` runs, views."""
        count = len(next(iter(stacks.values())))
        size = (self.chunk_size or count) if self.taken[what] == "vectorized" else 1
        for start in range(0, count, size):
            yield {name: stack[start : start + size] for name, stack in stacks.items()}

    def chunk(self, what: str, part: Mapping[str, Tensor], one: OneParticle) -> Tensor:
        """Values of the particles of one chunk."""
        return _values(part, one, vectorized=self.taken[what] == "vectorized")


def _values(stacks: Mapping[str, Tensor], one: OneParticle, *, vectorized: bool) -> Tensor:
    with _expected_warnings():
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
    drawing = (
        training or graded
    )  # otherwise another thread alone may draw, whose numbers are not to come again
    with preserved_random_state(device) if drawing else nullcontext(), exact_products():
        with evaluating(owner):
            apart = _values(stacks, one, vectorized=False)
        try:
            with evaluating(owner):
                together = _values(stacks, one, vectorized=True)
            if training or graded:
                _try_training({name: stacks[name] for name in trained}, stacks, one)
        except (RuntimeError, ValueError, TypeError) as error:
            # All that vmap refuses a program with: RuntimeError for an operation without a batching rule or a branch on
            # values, the others for shapes or types that the program itself refuses then. The loop has run by now, so
            # the program is sound; the reason is kept where the user can read it.
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


@contextmanager
def _expected_warnings() -> Iterator[None]:
    """Leaves out that vmap loops over some operations, and that Pyro misses rows of stacks in its store."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message=".* was not registered in the param store")
        yield
