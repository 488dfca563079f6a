"""Which heads of a network a method is about: as particles, or as what pays for being alike."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.projections import find_projection
from probattn.sites import DisagreementAttention
from probattn.sites.repulsive import HeadProjection, HeadRecord, Projection, RepulsiveAttention


def head_record(
    method: RepulsiveAttention | None, calls: AttentionCalls, net: PreTrainedModel
) -> HeadRecord | None:
    """Where the heads of a network are that are particles; None without repulsive heads.

    Args:
        method: the options.
        calls: whose heads repel.
        net: the network.

    Raises:
        ValueError: a projection that the network does not keep apart, frozen weights, or a single head that is to
            repel.
    """
    if method is None:
        return None
    found = _projections("RepulsiveAttention", method.projections, calls, net)
    for projection in found:
        slices = projection.slices(net)
        if method.couples and slices.heads < 2:
            raise ValueError(
                f"{projection.name}: expected two heads or more to repel each other, got one; leave "
                f"{projection.part!r} out of RepulsiveAttention(projections=...), choose other layers, or set "
                "repulsion=0"
            )
        if not slices.parameter.requires_grad:
            raise ValueError(f"{projection.name}: its weight is frozen; set requires_grad or leave it out")
    return HeadRecord(method, tuple(found))


def penalised_heads(
    method: DisagreementAttention, calls: AttentionCalls, net: PreTrainedModel
) -> dict[str, tuple[HeadProjection, ...]]:
    """The projections by attention module whose heads pay for being alike; none where outputs or weights do.

    Args:
        method: the options.
        calls: whose heads pay.
        net: the network.

    Raises:
        ValueError: a single head, or a projection that the network does not keep apart.
    """
    if method.looks_at != "parameters":
        for call in calls:
            heads = call.num_key_value_heads if method.looks_at == "value" else call.num_heads
            if heads < 2:
                what = "value heads" if method.looks_at == "value" else "heads"
                raise ValueError(
                    f"{call.name}: expected two {what} or more to tell apart, got one; choose other layers"
                )
        return {}
    found: dict[str, tuple[HeadProjection, ...]] = {}
    for projection in _projections("DisagreementAttention", method.projections, calls, net):
        if projection.slices(net).heads < 2:
            raise ValueError(
                f"{projection.name}: expected two heads or more to tell apart, got one; leave {projection.part!r} "
                "out of DisagreementAttention(projections=...) or choose other layers"
            )
        found[projection.module] = (*found.get(projection.module, ()), projection)
    return found


def _projections(
    owner: str, parts: Sequence[Projection], calls: Sequence[AttentionCall], net: PreTrainedModel
) -> list[HeadProjection]:
    """Each weight once: a module called twice has its heads once, under the name of its first call."""
    first: dict[str, AttentionCall] = {}
    for call in calls:
        first.setdefault(call.module, call)
    return [find_projection(net, call, part, owner) for call in first.values() for part in parts]
