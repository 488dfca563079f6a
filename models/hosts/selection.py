"""Choosing the attention calls to make latent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, cast, get_args

from probattn.models.hosts.calls import AttentionCall, AttentionCalls

Layers = Literal["all", "first", "last"] | Sequence[int]
Kind = Literal["all", "self", "cross"]
Part = Literal["encoder", "decoder", "cross"]


def select(calls: AttentionCalls, layers: Layers, attention: Kind) -> AttentionCalls:
    """The calls of the chosen layers and kinds.

    Args:
        calls: a network's calls.
        layers: which layers of every stack: "all", "first", "last", or their numbers from 0 (negative from the end).
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
        if attention in ("all", call.kind):
            groups[call.stack, call.kind].append(call)
    chosen = {call.name for group in groups.values() for call in _pick(group, layers)}
    if not chosen:
        raise ValueError(
            f"no attention call with layers={layers!r} and attention={attention!r} in this network"
        )
    return AttentionCalls(call for call in calls if call.name in chosen)


def select_part(calls: AttentionCalls, layers: Layers | Part, attention: Kind) -> AttentionCalls:
    """The same, with words for the parts of an encoder-decoder.

    Args:
        calls: a network's calls.
        layers: as for :func:`select`, or "encoder", "decoder" (its self-attention) or "cross".
        attention: "all", "self" or "cross".

    Returns:
        Those chosen, in order.

    Raises:
        ValueError: as for :func:`select`.
    """
    if layers not in get_args(Part):
        return select(calls, cast(Layers, layers), attention)
    if layers == "cross":
        chosen = [call for call in calls if call.kind == "cross"]
    else:
        chosen = [call for call in calls if call.kind == "self" and call.decoder == (layers == "decoder")]
    if not chosen or attention not in ("all", chosen[0].kind):
        raise ValueError(
            f"no attention call with layers={layers!r} and attention={attention!r} in this network"
        )
    return AttentionCalls(chosen)


def _pick(group: list[AttentionCall], layers: Layers) -> list[AttentionCall]:
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
