"""Placement of attention methods on a network, a function for each, and factors of calls that have attended."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from probattn.checks import grouped
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.eager import Attended, HostCall, as_tokens, windows_to_heads
from probattn.models.hosts.passes import StackPass
from probattn.particles import FusedProjection
from probattn.sites import (
    AlignmentAttention,
    AlignmentFactor,
    AttentionMask,
    AttentionSite,
    BayesianAttention,
    DisagreementAttention,
    DisagreementFactor,
    Method,
    SiteSpec,
    UpwardChain,
)
from probattn.sites.handlers import is_handled
from probattn.sites.repulsive import RECORD, HeadProjection, HeadRecord, Projection, RepulsiveAttention


@dataclass(frozen=True, eq=False)
class AttendedCall:
    """One attention call with its output: W windows a datum in the batch, next to the heads in ``valid``.

    ``latent``: whether the weights were drawn, or stand for draws.
    """

    call: AttentionCall
    host: HostCall
    attended: Attended
    valid: AttentionMask | None
    windows: int
    latent: bool

    def undisturbed(self) -> Attended:
        """Output and weights without the attention dropout of the host; latent weights as drawn."""
        if self.latent or not self.host.module.training or not self.host.options.get("dropout"):
            return self.attended
        return self.host.eager(dropout=0.0)

    def tokens(self, tensor: Tensor) -> Tensor:
        """``[B * W, H, T, ...]`` as ``[B, H, W * T, ...]``: a datum's windows one after the other."""
        return as_tokens(windows_to_heads(tensor, self.windows), self.windows)


class CallFactor(nn.Module, ABC):
    """Submodule that adds a factor to a Pyro model for each of the module's calls whose index is in ``calls``."""

    def __init__(self, calls: tuple[int, ...]) -> None:
        super().__init__()
        self.calls = calls

    @abstractmethod
    def announce(self, attended: AttendedCall) -> None:
        """Adds the factor of a call; ``RuntimeError`` in training mode with gradients outside Pyro's handlers."""


class CallFactors(CallFactor):
    """Several factors of one attention module, by name."""

    def __init__(self, factors: Mapping[str, CallFactor]) -> None:
        super().__init__(tuple(sorted({index for factor in factors.values() for index in factor.calls})))
        self.factors = nn.ModuleDict(factors)

    def announce(self, attended: AttendedCall) -> None:
        """Announces the factors that concern a call."""
        for factor in self.factors.values():
            if isinstance(factor, CallFactor) and attended.call.index in factor.calls:
                factor.announce(attended)


class HeadPenalty(CallFactor):
    """Penalty on similar heads, for the module's ``calls`` by index; ``projections`` holds the weights it compares."""

    def __init__(
        self, factor: DisagreementFactor, calls: tuple[int, ...], projections: tuple[HeadProjection, ...] = ()
    ) -> None:
        super().__init__(calls)
        self.factor = factor
        self.projections = projections

    def announce(self, attended: AttendedCall) -> None:
        """Announces the factor of a call; weights of a module that is called twice pay once."""
        looks_at = self.factor.method.looks_at
        if looks_at == "parameters" and attended.call.index != self.calls[0]:
            return
        rows = len(attended.host.query) // attended.windows
        self.factor.announce(attended.call.name, rows, lambda: self._penalty(attended))

    def _penalty(self, attended: AttendedCall) -> Tensor:
        looks_at, valid = self.factor.method.looks_at, attended.valid
        if looks_at == "parameters":
            module = attended.host.module
            return self.factor.parameter_penalty([item.within(module).weights() for item in self.projections])
        if looks_at == "value":
            keys = None if valid is None else as_tokens(valid.key_valid, attended.windows).any(dim=1)
            return self.factor.penalty(attended.tokens(attended.host.value), keys)
        output, weights = attended.undisturbed()
        compared = output.transpose(1, 2) if looks_at == "output" else weights
        if compared is None:
            raise ValueError(
                f"{attended.call.name}: its attention function gives no weights to tell heads apart by; use the method "
                "'outputs', 'subspaces' or 'parameters'"
            )
        return self.factor.penalty(attended.tokens(compared), None if valid is None else valid.query_valid)


@dataclass(frozen=True)
class Host:
    """A network that methods are put on.

    Attributes:
        net: the network, not changed yet.
        stacks: what the attention calls of a stack share in a forward pass, by stack.
        methods: all that are put on it.
    """

    net: PreTrainedModel
    stacks: Mapping[str, StackPass]
    methods: Sequence[Method] = ()

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
        changes: functions of the network that change it at last and undo that, in a module, so that copies keep them.
    """

    sites: Mapping[str, AttentionSite] = field(default_factory=dict)
    factors: Mapping[str, AlignmentFactor] = field(default_factory=dict)
    penalties: Mapping[str, CallFactor] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    hooks: Sequence[Callable[[nn.Module, Any], None]] = ()
    changes: Sequence[tuple[Callable[[Any], None], Callable[[Any], None]]] = ()

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
    return {module: tuple(made) for module, made in grouped((call.module, call) for call in calls).items()}


SEPARATE: dict[Projection, tuple[str, ...]] = {
    "query": ("query", "q_proj", "query_proj", "q_lin", "q", "q_attn"),
    "key": ("key", "k_proj", "key_proj", "k_lin", "k"),
    "value": ("value", "v_proj", "value_proj", "v_lin", "v"),
}
"""Names in the families of transformers, the attention module's own children."""

FUSED = ("c_attn", "Wqkv", "qkv_proj", "qkv")
"""Queries, keys and values in one weight, in this order."""


def find_projection(
    net: nn.Module, call: AttentionCall, kind: Projection, owner: str = "RepulsiveAttention"
) -> HeadProjection:
    """The projection that makes a call's "query", "key" or "value"; ``ValueError`` where no known family has it."""
    projection = _projection(net, call, kind)
    if projection is None:
        module = net.get_submodule(call.module)
        linear = [name for name, child in module.named_modules() if name and _is_linear(child)]
        others = any(_projection(net, call, other) for other in SEPARATE)
        raise ValueError(
            f"{call.name}: {type(module).__name__} has no projection of its own for the {kind}; it has "
            f"{', '.join(linear) or 'none'}; {f'leave {kind!r} out of {owner}(projections=...) or ' * others}choose "
            "other layers"
        )
    return projection


def _projection(net: nn.Module, call: AttentionCall, kind: Projection) -> HeadProjection | None:
    module = net.get_submodule(call.module)
    heads = call.num_heads if kind == "query" else call.num_key_value_heads
    for name in SEPARATE[kind]:
        if _is_linear(getattr(module, name, None)):
            return HeadProjection(call.name, kind, call.module, name, heads)
    for name in FUSED:
        layer = getattr(module, name, None)
        if _is_linear(layer) and _makes_three(layer, call):
            fused = FusedProjection(kind, key_heads=call.num_key_value_heads)
            return HeadProjection(call.name, kind, call.module, name, call.num_heads, fused)
    return None


def head_lengths(net: nn.Module, calls: Sequence[AttentionCall]) -> dict[str, dict[str, float]]:
    """Mean length of a head's weights, by call and projection; projections that a call does not keep are left out."""
    by_call: dict[str, dict[str, float]] = {}
    for call in calls:
        lengths = by_call[call.name] = {}
        for kind in SEPARATE:
            projection = _projection(net, call, kind)
            if projection is not None:
                lengths[kind] = projection.slices(net).particles().float().norm(dim=-1).mean().item()
    return by_call


def _is_linear(module: object) -> bool:
    return isinstance(module, (nn.Linear, Conv1D))


def _makes_three(layer: object, call: AttentionCall) -> bool:
    """True if a weight makes queries, keys and values; GPT-2's cross-attention fuses keys and values only."""
    assert isinstance(layer, (nn.Linear, Conv1D))
    features = layer.out_features if isinstance(layer, nn.Linear) else layer.nf
    return features == (call.num_heads + 2 * call.num_key_value_heads) * call.head_dim


@place.register
def _latent(method: BayesianAttention, calls: AttentionCalls, host: Host) -> Placement:
    """A module's site serves all its calls and joins the chain of each."""
    _refuse_positions(method, calls)
    sites: dict[str, AttentionSite] = {}
    for call in calls:
        chain = host.chain(call)
        if call.module in sites:
            sites[call.module].join(chain)
        else:
            form: dict[str, Any] = {"causal": call.causal, "windowed": call.windowed, "kind": call.kind}
            spec = SiteSpec(call.num_heads, call.head_dim, max_positions=call.max_positions, **form)
            sites[call.module] = AttentionSite(method, spec, chain)
    return Placement(sites=sites)


@place.register
def _aligned(method: AlignmentAttention, calls: AttentionCalls, _: Host) -> Placement:
    """A module's factor serves all its calls; one generator for all, so that layers begin differently."""
    source = torch.Generator().manual_seed(method.seed)
    form: dict[str, Any] = {"num_sites": len(calls), "generator": source}
    firsts = {module: module_calls[0] for module, module_calls in by_module(calls).items()}
    sizes = {name: (first.num_heads, first.head_dim) for name, first in firsts.items()}
    return Placement(factors={name: AlignmentFactor(method, *size, **form) for name, size in sizes.items()})


@place.register
def _repelled(method: RepulsiveAttention, calls: AttentionCalls, host: Host) -> Placement:
    """A record of where the particles are; a single head, which has none to repel, and frozen weights are refused."""
    of_heads = _projections("RepulsiveAttention", method.projections, calls, host.net)
    projections = [replace(one, interleaved=method.particles == "features") for one in of_heads]
    for projection in projections:
        slices = projection.slices(host.net)
        if method.couples and slices.heads < 2:
            raise ValueError(
                f"{projection.name}: expected two heads or more to repel each other, got one; leave "
                f"{projection.part!r} out of RepulsiveAttention(projections=...), choose other layers, or set "
                "repulsion=0"
            )
        if not slices.parameter.requires_grad:
            raise ValueError(f"{projection.name}: its weight is frozen; set requires_grad or leave it out")
    record = HeadRecord(method, tuple(projections))
    return Placement(attributes={RECORD: record}, hooks=(refuse_undriven,))


@place.register
def _penalised(method: DisagreementAttention, calls: AttentionCalls, host: Host) -> Placement:
    """Single heads, and projections that the network does not keep apart, are refused."""
    heads = _penalised_heads(method, calls, host.net)
    penalties = {}
    for module, module_calls in by_module(calls).items():
        indices = tuple(call.index for call in module_calls)
        penalties[module] = HeadPenalty(DisagreementFactor(method), indices, heads.get(module, ()))
    return Placement(penalties=penalties)


def refuse_undriven(net: nn.Module, _: object) -> None:
    """Forward pre-hook: ``RuntimeError`` for training of particles with gradients outside all Pyro handlers."""
    if net.training and torch.is_grad_enabled() and not is_handled():
        raise RuntimeError(
            f"{type(net).__name__}: training its particles, which repel each other, without a driver would leave the "
            "repulsion out unnoticed; train with probattn.inference.SVGDDriver or probattn.ProbabilisticTrainer (in "
            "place of transformers.Trainer), or call .eval() or torch.no_grad() to predict"
        )


def _refuse_positions(method: BayesianAttention, calls: AttentionCalls) -> None:
    """Refuses ``upward="positions"`` where mixing queries would be wrong or has no bound."""
    if not (method.has_upward_path and method.upward == "positions"):
        return
    for call in calls:
        if call.decoder:
            reason = "and those of a decoder would see the future"
        elif not call.rows_alike:
            reason = "but here queries see different keys (windows)"
        elif method.max_positions is None and call.max_positions is None:
            reason = "but the network has no longest length; set BayesianAttention(max_positions=...)"
        else:
            continue
        raise ValueError(f"{call.name}: upward='positions' mixes queries, {reason}; use upward='heads'")


def _penalised_heads(
    method: DisagreementAttention, calls: AttentionCalls, net: PreTrainedModel
) -> dict[str, tuple[HeadProjection, ...]]:
    """The projections by attention module whose heads pay; none where outputs or weights do."""
    if method.looks_at != "parameters":
        for call in calls:
            heads = call.num_key_value_heads if method.looks_at == "value" else call.num_heads
            if heads < 2:
                what = "value heads" if method.looks_at == "value" else "heads"
                raise ValueError(
                    f"{call.name}: expected two {what} or more to tell apart, got one; choose other layers"
                )
        return {}
    module_heads: dict[str, tuple[HeadProjection, ...]] = {}
    for projection in _projections("DisagreementAttention", method.projections, calls, net):
        if projection.slices(net).heads < 2:
            raise ValueError(
                f"{projection.name}: expected two heads or more to tell apart, got one; leave {projection.part!r} "
                "out of DisagreementAttention(projections=...) or choose other layers"
            )
        module_heads[projection.module] = (*module_heads.get(projection.module, ()), projection)
    return module_heads


def _projections(
    owner: str, kinds: Sequence[Projection], calls: AttentionCalls, net: PreTrainedModel
) -> list[HeadProjection]:
    """Each weight once: a module called twice has its heads once, under the name of its first call."""
    firsts = [module_calls[0] for module_calls in by_module(calls).values()]
    return [find_projection(net, call, kind, owner) for call in firsts for kind in kinds]
