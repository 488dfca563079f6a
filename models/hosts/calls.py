"""Descriptions of a network's attention calls, and the choice of some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from probattn.checks import grouped


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a forward pass.

    Attributes:
        name: name of the call's Pyro site: the qualified name of the attention module, followed by ``#i`` if the module
            is called more than once in a forward pass.
        module: qualified name of the attention module.
        index: number of this call among the module's calls in a forward pass, from 0.
        kind: "self" if queries and keys come from the same tokens; "cross" if the queries come from other tokens or are
            parameters.
        causal: whether no query attends to a later key.
        window: sliding window of the call, in tokens; None without one.
        rows_alike: whether all queries of an input attend to the same keys.
        stack: name of the list of layers that the call belongs to, such as ``bert.encoder.layer``.
        layer: number of the call among those of its stack and kind, from 0.
        decoder: whether the stack is a decoder, in which no query may depend on later tokens.
        owner: qualified name of the module whose ``forward`` runs the whole stack once per forward pass.
        num_heads: number H of query heads.
        num_key_value_heads: number of key heads, less than H in grouped-query attention.
        head_dim: size of a key head.
        windowed: whether the network splits each input into windows that become rows of the batch (Swin).
        shape: numbers of windows per input, queries and keys in the short forward pass that finds the calls.
        max_positions: maximum number of queries; None without a limit.
        query_source: module and index of the self-attention that precedes a cross-attention in its stack; the padding
            mask of that self-attention applies to the queries. None if there is none.
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
        """True if each attention head has a single query, as in attention pooling."""
        return self.shape[1] == 1

    @property
    def chain(self) -> tuple[object, ...]:
        """Key of an upward path, the learned maps that pass states between calls: calls with equal keys share one.

        Their scores always have the same shape: layers with a sliding window in a decoder and each stage of Swin have a
        path of their own.
        """
        window = self.window if self.decoder else None
        stage = self.module.rpartition(".")[0].rstrip("0123456789") if self.windowed else ""
        return (self.stack, self.kind, self.num_heads, window, stage, self.shape)


class AttentionCalls(tuple[AttentionCall, ...]):
    """The attention calls of a network in the order of a forward pass; ``print`` shows them as a table.

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
    taken = [call for call in calls if attention in ("all", call.kind) and _in_part(call, layers)]
    words = "all" if isinstance(layers, str) and layers in get_args(Part) else layers
    selected = set()
    for (stack, kind), group in grouped(((call.stack, call.kind), call) for call in taken).items():
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
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        slices = {"all": slice(None), "first": slice(0, 1), "last": slice(-1, None)}
        if layers not in slices:
            raise ValueError(
                f"layers: expected 'all', 'first', 'last' or numbers such as [-1], got {layers!r}"
            )
        return list(range(count)[slices[layers]])
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
            raise ValueError(f"layers: expected numbers from {-count} to {count - 1}{among}, got {layer!r}")
    return [layer % count for layer in layers]
