"""Choosing attention calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, get_args

from probattn.models.hosts.calls import AttentionCall, AttentionCalls

Layers = Literal["all", "first", "last"] | Sequence[int]
Kind = Literal["all", "self", "cross"]
Part = Literal["encoder", "decoder", "cross"]


def select(calls: AttentionCalls, layers: str | Sequence[int], attention: Kind) -> AttentionCalls:
    """The calls of the chosen layers and kinds.

    Args:
        calls: a network's calls.
        layers: which layers of every stack: "all", "first", "last", or their numbers from 0 (negative from the end); or
            the calls of the "encoder", of the "decoder" (its self-attention) or the "cross" attention.
        attention: "all", "self" or "cross".

    Returns:
        Those chosen, in order.

    Raises:
        ValueError: an unknown word, a layer that does not exist, or nothing chosen.
    """
    if attention not in get_args(Kind):
        raise ValueError(f"attention: expected 'all', 'self' or 'cross', got {attention!r}")
    groups: dict[tuple[str, str], list[AttentionCall]] = defaultdict(list)
    for call in calls:
        if attention in ("all", call.kind) and _in_part(call, layers):
            groups[call.stack, call.kind].append(call)
    words = "all" if isinstance(layers, str) and layers in get_args(Part) else layers
    selected = {call.name for group in groups.values() for call in _pick(group, words)}
    if not selected:
        raise ValueError(
            f"no attention call with layers={layers!r} and attention={attention!r} in this network"
        )
    return AttentionCalls(call for call in calls if call.name in selected)


def _in_part(call: AttentionCall, layers: str | Sequence[int]) -> bool:
    """True if a call is in the requested part of an encoder-decoder, or no part is requested."""
    if not isinstance(layers, str) or layers not in get_args(Part):
        return True
    if layers == "cross" or call.kind == "cross":
        return layers == call.kind
    return call.decoder == (layers == "decoder")


def _pick(group: list[AttentionCall], layers: str | Sequence[int]) -> list[AttentionCall]:
    if isinstance(layers, str):
        slices = {"all": slice(None), "first": slice(0, 1), "last": slice(-1, None)}
        if layers not in slices:
            raise ValueError(f"layers: expected 'all', 'first', 'last' or numbers, got {layers!r}")
        return group[slices[layers]]
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -len(group) <= layer < len(group):
            raise ValueError(
                f"layers: expected numbers from {-len(group)} to {len(group) - 1} for the {group[0].kind} attention of "
                f"{group[0].stack!r}, got {layer!r}"
            )
    return [group[layer] for layer in layers]
