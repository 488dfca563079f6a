"""What conversion adds to a network's attention modules: sites, factors, and the calls they serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, HostedSite
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.heads import penalised_heads
from probattn.models.hosts.passes import StackPass
from probattn.models.hosts.penalty import HeadPenalty
from probattn.models.hosts.selection import Kind, Layers, select, select_part
from probattn.sites import (
    AlignmentAttention,
    AlignmentFactor,
    AttentionSite,
    BayesianAttention,
    DisagreementAttention,
    DisagreementFactor,
    SiteSpec,
    UpwardChain,
)
from probattn.sites.repulsive import RepulsiveAttention

Method = BayesianAttention | AlignmentAttention | RepulsiveAttention | DisagreementAttention
METHODS = (BayesianAttention, AlignmentAttention, RepulsiveAttention, DisagreementAttention)
Kinds = TypeVar("Kinds", BayesianAttention, AlignmentAttention, RepulsiveAttention, DisagreementAttention)


@dataclass(frozen=True)
class Plan:
    """Which calls of a network become what.

    Attributes:
        bayesian: the options of latent attention, or None.
        alignment: the options of alignment, or None.
        calls: all calls of the network.
        latent: those whose weights become latent, in order.
        aligned: those whose queries and keys are drawn together, in order.
        repulsive: the options of repulsive heads, or None.
        repelled: the calls whose heads are particles, in order.
        disagreement: the options of the penalty on heads that are alike, or None.
        penalised: the calls whose heads pay it, in order.
    """

    bayesian: BayesianAttention | None
    alignment: AlignmentAttention | None
    calls: AttentionCalls
    latent: AttentionCalls
    aligned: AttentionCalls
    repulsive: RepulsiveAttention | None
    repelled: AttentionCalls
    disagreement: DisagreementAttention | None
    penalised: AttentionCalls

    @property
    def hosted(self) -> AttentionCalls:
        """Calls that are latent, aligned or penalised, in order: those that go through a site of ours."""
        names = {call.name for call in (*self.latent, *self.aligned, *self.penalised)}
        return AttentionCalls(call for call in self.calls if call.name in names)

    @property
    def touched(self) -> AttentionCalls:
        """Calls that any method concerns, in order."""
        names = {call.name for call in (*self.hosted, *self.repelled)}
        return AttentionCalls(call for call in self.calls if call.name in names)


def make_plan(methods: Sequence[object], calls: AttentionCalls, layers: Layers, attention: Kind) -> Plan:
    """Chooses the calls of each method.

    Args:
        methods: as :func:`check_methods` takes them.
        calls: all calls of the network.
        layers: which layers, where a method does not say.
        attention: which kind, where a method does not say.

    Raises:
        ValueError: a selection is empty, or the options do not suit the calls.
    """
    bayesian = _only(methods, BayesianAttention)
    alignment = _only(methods, AlignmentAttention)
    repulsive = _only(methods, RepulsiveAttention)
    disagreement = _only(methods, DisagreementAttention)
    latent = aligned = repelled = penalised = AttentionCalls()
    if bayesian is not None:
        latent = select(calls, layers, attention)
        _refuse_positions(bayesian, latent)
    if alignment is not None:
        chosen = layers if alignment.layers is None else alignment.layers
        aligned = select(calls, chosen, alignment.attention or attention)
    if repulsive is not None:
        named = layers if repulsive.layers is None else repulsive.layers
        repelled = select_part(calls, named, repulsive.attention or attention)
    if disagreement is not None:
        wanted = layers if disagreement.layers is None else disagreement.layers
        penalised = select_part(calls, wanted, disagreement.attention or attention)
    return Plan(bayesian, alignment, calls, latent, aligned, repulsive, repelled, disagreement, penalised)


def check_methods(methods: Sequence[object]) -> None:
    """Refuses what are no attention methods.

    Raises:
        TypeError: no method, two of a kind, or something else.
    """
    if not methods:
        raise TypeError("convert: expected an attention method, such as BayesianAttention(), got none")
    for method in methods:
        if not isinstance(method, METHODS):
            expected = ", ".join(kind.__name__ for kind in METHODS)
            raise TypeError(f"convert: expected one of {expected}, got {type(method).__name__}")
    kinds = [type(method) for method in methods]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise TypeError(f"convert: expected one {kind.__name__}, got {kinds.count(kind)}")


def hosted_sites(plan: Plan, stacks: dict[str, StackPass], net: PreTrainedModel) -> dict[str, HostedSite]:
    """One hosted site per attention module concerned, joined to the stacks' chains in call order.

    Args:
        plan: which calls become what.
        stacks: shared states of the stacks that the plan touches.
        net: the network.

    Returns:
        Module names and what they get.

    Raises:
        ValueError: heads that cannot be compared.
    """
    sites, factors = _sites(plan, stacks), _factors(plan)
    penalties = _penalties(plan, net)
    selected, aligned = _indices(plan.latent), _indices(plan.aligned)
    crossed = {call.stack for call in plan.hosted if call.kind == "cross"}
    by_module: dict[str, list[AttentionCall]] = defaultdict(list)
    for call in plan.calls:
        # Untouched self attention shows a cross attention after it which queries are real.
        own = call.module in sites or call.module in factors or call.module in penalties
        if own or (call.stack in crossed and call.kind == "self"):
            by_module[call.module].append(call)
    return {
        name: HostedSite(
            sites.get(name),
            tuple(own),
            selected.get(name, ()),
            stacks[own[0].stack],
            factors.get(name),
            aligned.get(name, ()),
            penalties.get(name),
        )
        for name, own in by_module.items()
    }


def attach(net: PreTrainedModel, module: nn.Module, site: HostedSite) -> None:
    """Adds a hosted site to an attention module, on its device, in float32 (float64 in a float64 network)."""
    reference = next(module.parameters(), None)
    device = net.device if reference is None else reference.device
    dtype = torch.float64 if net.dtype == torch.float64 else torch.float32
    module.add_module(ATTRIBUTE, site.to(device=device, dtype=dtype).train(module.training))


def _only(methods: Iterable[object], kind: type[Kinds]) -> Kinds | None:
    return next((method for method in methods if isinstance(method, kind)), None)


def _refuse_positions(method: BayesianAttention, selected: AttentionCalls) -> None:
    """Refuses ``upward="positions"`` where mixing queries would be wrong or has no bound.

    Raises:
        ValueError: see above.
    """
    if not (method.has_upward_path and method.upward == "positions"):
        return
    for call in selected:
        if call.decoder:
            reason = "and those of a decoder would see the future"
        elif not call.rows_alike:
            reason = "but here queries see different keys (windows)"
        elif method.max_positions is None and call.max_positions is None:
            reason = "but the network has no longest length; set BayesianAttention(max_positions=...)"
        else:
            continue
        raise ValueError(f"{call.name}: upward='positions' mixes queries, {reason}; use upward='heads'")


def _sites(plan: Plan, stacks: dict[str, StackPass]) -> dict[str, AttentionSite]:
    sites: dict[str, AttentionSite] = {}
    for call in plan.latent:
        chain = stacks[call.stack].chains.setdefault(call.chain, UpwardChain())
        if call.module in sites:
            sites[call.module].join(chain)
        elif plan.bayesian is not None:
            sites[call.module] = _site(plan.bayesian, call, chain)
    return sites


def _site(method: BayesianAttention, call: AttentionCall, chain: UpwardChain) -> AttentionSite:
    spec = SiteSpec(
        call.num_heads,
        call.head_dim,
        causal=call.causal,
        max_positions=call.max_positions,
        kind=call.kind,
        windowed=call.windowed,
    )
    return AttentionSite(method, spec, chain)


def _factors(plan: Plan) -> dict[str, AlignmentFactor]:
    """A module's factor serves all its calls; one generator for all, so that layers begin differently."""
    if plan.alignment is None:
        return {}
    source = torch.Generator().manual_seed(plan.alignment.seed)
    build, count = plan.alignment.build, len(plan.aligned)
    factors: dict[str, AlignmentFactor] = {}
    for call in plan.aligned:
        if call.module not in factors:
            factors[call.module] = build(call.num_heads, call.head_dim, num_sites=count, generator=source)
    return factors


def _penalties(plan: Plan, net: PreTrainedModel) -> dict[str, HeadPenalty]:
    if plan.disagreement is None:
        return {}
    heads = penalised_heads(plan.disagreement, plan.penalised, net)
    return {
        module: HeadPenalty(DisagreementFactor(plan.disagreement), calls, heads.get(module, ()))
        for module, calls in _indices(plan.penalised).items()
    }


def _indices(calls: AttentionCalls) -> dict[str, tuple[int, ...]]:
    indices: dict[str, tuple[int, ...]] = {}
    for call in calls:
        indices[call.module] = (*indices.get(call.module, ()), call.index)
    return indices
