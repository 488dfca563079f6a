"""Placement of this library's methods on a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.penalty import HeadPenalty
from probattn.models.hosts.placing import Host, Placement, by_module, place
from probattn.models.hosts.projections import find_projection
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
from probattn.sites.handlers import is_handled
from probattn.sites.repulsive import RECORD, HeadProjection, HeadRecord, Projection, RepulsiveAttention

__all__ = ["place"]


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
            sites[call.module] = _site(method, call, chain)
    return Placement(sites=sites)


@place.register
def _aligned(method: AlignmentAttention, calls: AttentionCalls, _: Host) -> Placement:
    """A module's factor serves all its calls; one generator for all, so that layers begin differently."""
    source = torch.Generator().manual_seed(method.seed)
    factors = {
        module: AlignmentFactor(
            method,
            module_calls[0].num_heads,
            module_calls[0].head_dim,
            num_sites=len(calls),
            generator=source,
        )
        for module, module_calls in by_module(calls).items()
    }
    return Placement(factors=factors)


@place.register
def _repelled(method: RepulsiveAttention, calls: AttentionCalls, host: Host) -> Placement:
    """A record of where the particles are; a single head, which has none to repel, and frozen weights are refused."""
    projections = _projections("RepulsiveAttention", method.projections, calls, host.net)
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
    penalties = {
        module: HeadPenalty(
            DisagreementFactor(method), tuple(call.index for call in module_calls), heads.get(module, ())
        )
        for module, module_calls in by_module(calls).items()
    }
    return Placement(penalties=penalties)


def refuse_undriven(net: nn.Module, _: object) -> None:
    """Forward pre-hook: ``RuntimeError`` for training of repulsive heads with gradients outside all Pyro handlers."""
    if net.training and torch.is_grad_enabled() and not is_handled():
        raise RuntimeError(
            f"{type(net).__name__}: training its repulsive heads without a driver would leave the repulsion out "
            "unnoticed; train with probattn.inference.SVGDDriver or probattn.ProbabilisticTrainer (in place of "
            "transformers.Trainer), or call .eval() or torch.no_grad() to predict"
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
