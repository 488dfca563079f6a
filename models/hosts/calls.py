"""Descriptions of a network's attention calls, and the choice of some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a forward pass.

    Attributes:
        name: name of its Pyro site: the attention module's qualified name, with ``#i`` of repeated calls.
        module: qualified name of the attention module.
        index: which of the module's calls this is, from 0.
        kind: "self" where the queries are those of the keys' own tokens, else "cross": another's, or parameters.
        causal: whether queries see no later keys.
        window: how far a query sees, in families that limit it in some layers.
        rows_alike: whether all queries of a datum see the same keys.
        stack: the list of layers it belongs to, such as ``bert.encoder.layer``.
        layer: its place among the calls of its stack and kind, from 0.
        decoder: whether its stack works from left to right, so that no query may learn of a later one.
        owner: qualified name of the module whose forward runs the whole stack, once in a pass.
        num_heads: query heads H.
        num_key_value_heads: key heads, fewer where they are grouped.
        head_dim: size of a key head.
        windowed: whether the host attends within windows of a datum, which it folds into the batch; its site sees them
            next to the heads.
        shape: windows per datum, queries and keys of the dry run.
        max_positions: longest query length of the network, or None where there is no limit.
        query_source: module and index of the self attention before a cross attention in its stack, whose mask tells
            which queries are real; None where there is none.
    """

    name: str
    module: str
    index: int
    kind: Literal["self", "cross"]
    causal: bool
    window: int | None
    rows_alike: bool
    stack: str
    layer: int
    decoder: bool
    owner: str
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    windowed: bool
    shape: tuple[int, int, int]
    max_positions: int | None
    query_source: tuple[str, int] | None = None

    @property
    def pools(self) -> bool:
        """True if each head reads the keys with a single query, so that its weights are over the keys alone."""
        return self.shape[1] == 1

    @property
    def chain(self) -> tuple[object, ...]:
        """Calls with the same key share one upward chain: their maps always have the same shape.

        With a cache, sliding layers keep fewer keys than full ones; a windowed network's stages differ.
        """
        window = self.window if self.decoder else None
        stage = self.module.rpartition(".")[0].rstrip("0123456789") if self.windowed else ""
        return (self.stack, self.kind, self.num_heads, window, stage, self.shape)


class AttentionCalls(tuple[AttentionCall, ...]):
    """The calls of a network in the order of a forward pass; prints as a table.

    Example:
        >>> print(AttentionCalls())
        site  kind  mask  heads  head size
    """

    __slots__ = ()

    def __str__(self) -> str:
        header = ("site", "kind", "mask", "heads", "head size")
        table = [header, *(_row(call) for call in self)]
        widths = [max(len(row[column]) for row in table) for column in range(len(header))]
        rows = (zip(row, widths, strict=True) for row in table)
        return "\n".join("  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in rows)


def _row(call: AttentionCall) -> tuple[str, ...]:
    words = {"causal": call.causal, f"{call.window} near": call.window is not None, "windows": call.windowed}
    masks = [word for word, holds in words.items() if holds]
    heads = str(call.num_heads)
    if call.num_key_value_heads != call.num_heads:
        heads += f" ({call.num_key_value_heads} key heads)"
    return call.name, call.kind, ", ".join(masks) or "full", heads, str(call.head_dim)


Layers = Literal["all", "first", "last"] | Sequence[int]
Kind = Literal["all", "self", "cross"]
Part = Literal["encoder", "decoder", "cross"]


def select(calls: AttentionCalls, layers: str | Sequence[int], attention: Kind) -> AttentionCalls:
    """The calls of these layers and kinds in order; ``ValueError`` for an unknown word or layer, or without any."""
    if attention not in get_args(Kind):
        raise ValueError(f"attention: expected 'all', 'self' or 'cross', got {attention!r}")
    groups: dict[tuple[str, str], list[AttentionCall]] = defaultdict(list)
    for call in calls:
        if attention in ("all", call.kind) and _in_part(call, layers):
            groups[call.stack, call.kind].append(call)
    words = "all" if isinstance(layers, str) and layers in get_args(Part) else layers
    selected = set()
    for (stack, kind), group in groups.items():
        numbers = layer_numbers(len(group), words, f" for the {kind} attention of {stack!r}")
        selected |= {group[number].name for number in numbers}
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


def layer_numbers(count: int, layers: str | Sequence[int], among: str = "") -> list[int]:
    """Numbers of layers from 0, in the order in which they are named; ``ValueError`` for one that does not exist."""
    if isinstance(layers, str):
        slices = {"all": slice(None), "first": slice(0, 1), "last": slice(-1, None)}
        if layers not in slices:
            raise ValueError(f"layers: expected 'all', 'first', 'last' or numbers, got {layers!r}")
        return list(range(count)[slices[layers]])
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
            raise ValueError(f"layers: expected numbers from {-count} to {count - 1}{among}, got {layer!r}")
    return [layer % count for layer in layers]
