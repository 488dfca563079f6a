"""Placement of attention methods on a network: a function for each method, in a registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.passes import StackPass
from probattn.models.hosts.penalty import CallFactor
from probattn.sites import AlignmentFactor, AttentionSite, UpwardChain


@dataclass(frozen=True)
class Host:
    """A network that methods are put on.

    Attributes:
        net: the network, not changed yet.
        stacks: what the attention calls of a stack share in a forward pass, by stack.
    """

    net: PreTrainedModel
    stacks: Mapping[str, StackPass]

    def chain(self, call: AttentionCall) -> UpwardChain:
        """The upward chain that a call shares with the others of its shape in its stack."""
        return self.stacks[call.stack].chains.setdefault(call.chain, UpwardChain())


@dataclass(frozen=True)
class Placement:
    """Submodules that a method adds to a network, by qualified name of the attention module.

    Attributes:
        sites: what attends in a module's place; one method may bring them.
        factors: what is called with queries and keys before a module attends; one method may bring them.
        penalties: what is called with all that a module was given and answered; any number of methods may bring them.
        attributes: what hangs on the network itself, by name of the attribute.
        hooks: forward pre-hooks of the network.
    """

    sites: Mapping[str, AttentionSite] = field(default_factory=dict)
    factors: Mapping[str, AlignmentFactor] = field(default_factory=dict)
    penalties: Mapping[str, CallFactor] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    hooks: Sequence[Callable[[nn.Module, Any], None]] = ()

    @property
    def modules(self) -> frozenset[str]:
        """The attention modules that go through this library's attention."""
        return frozenset({*self.sites, *self.factors, *self.penalties})


@functools.singledispatch
def place(method: object, calls: AttentionCalls, host: Host) -> Placement:
    """Makes the submodules that a method adds to a network; ``place.register`` adds a method.

    Args:
        method: the options.
        calls: the attention calls that it concerns, in order.
        host: the network.

    Returns:
        What to add; the network stays as it is.

    Raises:
        TypeError: nothing is registered for these options.
        ValueError: the options do not suit the calls.
    """
    raise TypeError(
        f"{type(method).__name__}: expected a method registered with probattn.models.hosts.place, since it concerns "
        f"{len(calls)} calls of {type(host.net).__name__}"
    )


def by_module(calls: AttentionCalls) -> dict[str, tuple[AttentionCall, ...]]:
    """Calls by the module that makes them, in order."""
    modules: dict[str, tuple[AttentionCall, ...]] = {}
    for call in calls:
        modules[call.module] = (*modules.get(call.module, ()), call)
    return modules
