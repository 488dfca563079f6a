"""Paths of the weights that make queries, keys and values in a host's attention modules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers.pytorch_utils import Conv1D

from probattn.models.hosts.calls import AttentionCall
from probattn.particles import FusedProjection
from probattn.sites.repulsive import HeadProjection, Projection

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
    linear = [name for name, child in module.named_modules() if name and _is_linear(child)]
    raise ValueError(
        f"{call.name}: {type(module).__name__} has no projection of its own for the {kind}; it has "
        f"{', '.join(linear) or 'none'}; leave {kind!r} out of {owner}(projections=...) or choose "
        "other layers"
    )


def head_lengths(net: nn.Module, calls: Sequence[AttentionCall]) -> dict[str, dict[str, float]]:
    """Mean length of a head's weights, by call and projection; projections that a call does not keep are left out."""
    by_call: dict[str, dict[str, float]] = {}
    for call in calls:
        lengths = by_call[call.name] = {}
        for kind in SEPARATE:
            try:
                slices = find_projection(net, call, kind).slices(net)
            except ValueError:
                continue  # it has none of its own, which is no mistake of anybody here
            lengths[kind] = slices.particles().float().norm(dim=-1).mean().item()
    return by_call


def _is_linear(module: object) -> bool:
    return isinstance(module, (nn.Linear, Conv1D))


def _makes_three(layer: object, call: AttentionCall) -> bool:
    """True if a weight makes queries, keys and values; GPT-2's cross-attention fuses keys and values only."""
    assert isinstance(layer, (nn.Linear, Conv1D))
    features = layer.out_features if isinstance(layer, nn.Linear) else layer.nf
    return features == (call.num_heads + 2 * call.num_key_value_heads) * call.head_dim
