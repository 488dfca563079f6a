"""What conversion adds to a network: the submodules of its attention modules, and the record of all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, HostedSite
from probattn.models.hosts.calls import AttentionCalls, Kind, Layers, Part, select
from probattn.models.hosts.methods import CallFactor, CallFactors, Host, Placement, by_module
from probattn.models.hosts.undriven import Implementations
from probattn.sites import METHODS, BayesianAttention, Method
from probattn.sites.observation import ObservationNoise, ObservationScale

Item = TypeVar("Item")
Methods = Mapping[type[Method], Method]
Placements = Mapping[type[Method], Placement]
AnyMethod = TypeVar("AnyMethod", bound=Method)


@dataclass(frozen=True)
class Placed:
    """A method and the calls that it concerns, in order."""

    method: Method
    calls: AttentionCalls


@dataclass(frozen=True)
class Plan:
    """The calls that each method takes: all ``calls``, and ``placed``, in order of precedence by class of options."""

    calls: AttentionCalls
    placed: Mapping[type[Method], Placed]

    def calls_of(self, kind: type[Method]) -> AttentionCalls:
        """The calls that a method concerns, in order."""
        return self.placed[kind].calls if kind in self.placed else AttentionCalls()

    @property
    def touched(self) -> AttentionCalls:
        """Calls that any method concerns, in order."""
        names = {call.name for placed in self.placed.values() for call in placed.calls}
        return AttentionCalls(call for call in self.calls if call.name in names)


def in_order(methods: Sequence[object]) -> dict[type[Method], Method]:
    """Attention methods by registered class, in order of precedence; ``TypeError`` for none or two of a kind."""
    if not methods:
        raise TypeError("convert: expected an attention method, such as BayesianAttention(), got none")
    by_kind: dict[type[Method], list[Method]] = {kind: [] for kind in METHODS}
    for method in methods:
        kind = next((kind for kind in METHODS if isinstance(method, kind)), None)
        if kind is None or not isinstance(method, kind):
            expected = ", ".join(kind.__name__ for kind in METHODS)
            kind = method if isinstance(method, type) and method in METHODS else next(iter(METHODS))
            raise TypeError(
                f"convert: expected one of {expected}, got {type(method).__name__}; give an object: {kind.__name__}()"
            )
        by_kind[kind].append(method)
    for kind, several in by_kind.items():
        if len(several) > 1:
            raise TypeError(f"convert: expected one {kind.__name__}, got {len(several)}")
    return {kind: several[0] for kind, several in by_kind.items() if several}


def make_plan(methods: Methods, calls: AttentionCalls, layers: Layers | Part, attention: Kind) -> Plan:
    """Chooses the calls of each method; ``layers`` and ``attention`` hold where a method does not choose itself."""
    placed: dict[type[Method], Placed] = {}
    for kind, method in methods.items():
        numbers = layers if method.layers is None else method.layers
        placed[kind] = Placed(method, select(calls, numbers, method.attention or attention))
    return Plan(calls, placed)


def hosted_sites(plan: Plan, placements: Placements, host: Host) -> dict[str, HostedSite]:
    """One hosted site for each attention module of the plan, by module name, joined to the stacks' chains in order."""
    latent, sites = _single("sites", {kind: placed.sites for kind, placed in placements.items()})
    aligned, factors = _single("factors", {kind: placed.factors for kind, placed in placements.items()})
    selected, compared = _indices(plan, latent), _indices(plan, aligned)
    penalties = _penalties(placements)
    concerned = {module for placed in placements.values() for module in placed.modules}
    crossed = {call.stack for call in plan.calls if call.module in concerned and call.kind == "cross"}
    hosted = {}
    for name, calls in by_module(plan.calls).items():
        # Untouched self attention shows a cross attention after it which queries are real.
        if name in concerned or any(call.stack in crossed and call.kind == "self" for call in calls):
            state, factor, indices = host.stacks[calls[0].stack], factors.get(name), compared.get(name, ())
            latent_site = (sites.get(name), calls, selected.get(name, ()))
            hosted[name] = HostedSite(*latent_site, state, factor, indices, penalties.get(name))
    return hosted


def attach(net: PreTrainedModel, module: nn.Module, site: HostedSite) -> None:
    """Adds a hosted site to an attention module, on its device, in float32 (float64 in a float64 network)."""
    reference = next(module.parameters(), None)
    device = net.device if reference is None else reference.device
    dtype = torch.float64 if net.dtype == torch.float64 else torch.float32
    module.add_module(ATTRIBUTE, site.to(device=device, dtype=dtype).train(module.training))


def scale_of(net: nn.Module) -> ObservationScale | None:
    """The learned scale of observed numbers that a network, or the one inside a wrapper of PEFT, holds; else None."""
    present = host_of(net)._modules.get(ATTRIBUTE)
    return present if isinstance(present, ObservationScale) else None


def add_scale(net: nn.Module, noise: ObservationNoise, size: int) -> ObservationScale:
    """Gives a network, the one inside a wrapper of PEFT, a scale of ``size`` observed numbers, on its device."""
    reference, scale = next(net.parameters(), None), ObservationScale(noise, size)
    host_of(net).add_module(ATTRIBUTE, scale if reference is None else scale.to(reference.device))
    return scale


def _single(
    what: str, brought: Mapping[type[Method], Mapping[str, Item]]
) -> tuple[type[Method] | None, Mapping[str, Item]]:
    """The one method that adds these, and what it adds."""
    nonempty = [(kind, items) for kind, items in brought.items() if items]
    if len(nonempty) > 1:
        names = " and ".join(kind.__name__ for kind, _ in nonempty)
        expected = f"one method with {what} of its own"
        raise ValueError(f"convert: expected {expected}, got {names}; convert with one")
    return nonempty[0] if nonempty else (None, {})


def _penalties(placements: Placements) -> dict[str, CallFactor]:
    penalties: dict[str, dict[str, CallFactor]] = {}
    for kind, placed in placements.items():
        for module, penalty in placed.penalties.items():
            penalties.setdefault(module, {})[kind.kind] = penalty
    return {
        module: CallFactors(several) if len(several) > 1 else next(iter(several.values()))
        for module, several in penalties.items()
    }


def _indices(plan: Plan, kind: type[Method] | None) -> dict[str, tuple[int, ...]]:
    modules = by_module(AttentionCalls() if kind is None else plan.calls_of(kind))
    return {module: tuple(call.index for call in calls) for module, calls in modules.items()}


RECORD = "_probattn_conversion"


@dataclass(eq=False)
class Conversion:
    """Record of :func:`convert`: plan, request, former implementations, hooks, attributes, what undoes changes."""

    plan: Plan
    layers: Layers | Part
    attention: Kind
    before: Implementations
    hooks: list[RemovableHandle]
    attributes: tuple[str, ...] = ()
    undo: tuple[Callable[[Any], None], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Without the hooks of modules that are gone, whose handles cannot be copied."""
        return {**vars(self), "hooks": [hook for hook in self.hooks if hook.hooks_dict_ref() is not None]}

    @property
    def methods(self) -> tuple[Method, ...]:
        """All methods, in order of precedence."""
        return tuple(placed.method for placed in self.plan.placed.values())

    def of(self, kind: type[AnyMethod]) -> AnyMethod | None:
        """The options of a method, by their class; None without it."""
        placed = self.plan.placed.get(kind)
        return placed.method if placed is not None and isinstance(placed.method, kind) else None

    @property
    def method(self) -> BayesianAttention | None:
        """The options of latent attention; None where all attention is deterministic."""
        return self.of(BayesianAttention)

    @property
    def calls(self) -> AttentionCalls:
        """The calls made latent."""
        return self.plan.calls_of(BayesianAttention)


def host_of(net: Any) -> Any:
    """The network that a wrapper of the PEFT library has inside; any other network itself."""
    inner = getattr(type(net), "get_base_model", None)
    return net if inner is None else inner(net)


def conversion(net: nn.Module) -> Conversion | None:
    """The record of a network's conversion, or of the network inside a wrapper of PEFT; None without one."""
    return vars(host_of(net)).get(RECORD)
