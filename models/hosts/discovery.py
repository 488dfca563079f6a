"""Finding the attention calls of a Hugging Face network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from probattn.models.hosts.dry_run import dry_inputs, quiet_evaluation
from probattn.models.hosts.eager import eager_attention
from probattn.models.hosts.masks import valid_pairs

RECORDER = "probattn_recorder"
"""Name of the recording attention function; Hugging Face treats names with flash, sdpa or flex specially."""


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a forward pass.

    Attributes:
        name: name of its Pyro site: the attention module's qualified name, with ``#i`` where a module is called
            several times in a pass.
        module: qualified name of the attention module.
        index: which of the module's calls this is, from 0.
        kind: "self" or "cross".
        causal: whether queries see earlier keys only.
        stack: the list of layers it belongs to, such as ``bert.encoder.layer``.
        num_heads: query heads.
        num_key_value_heads: key heads, fewer where they are grouped.
        head_dim: size of a key head.
        shape: rows per datum, queries and keys of the dry run; calls of different shapes share no upward chain.
        max_positions: longest query length of the network, if it has one.
        window: how far a query sees, in families that limit it in some layers. With a cache their keys are fewer, so
            calls of different windows share no upward chain.
        rows_alike: whether all queries of a datum see the same keys.
    """

    name: str
    module: str
    index: int
    kind: Literal["self", "cross"]
    causal: bool
    stack: str
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    shape: tuple[int, int, int]
    max_positions: int | None
    window: int | None = None
    rows_alike: bool = True

    @property
    def windowed(self) -> bool:
        """Whether the host folds windows of one datum into the batch; its site sees them beside the heads."""
        return self.shape[0] > 1


class AttentionCalls(tuple[AttentionCall, ...]):
    """The calls of a network in their order; prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        header = ("site", "kind", "heads", "key heads", "head size", "causal")
        rows = [
            (
                call.name,
                call.kind,
                str(call.num_heads),
                str(call.num_key_value_heads),
                str(call.head_dim),
                "yes" if call.causal else "no",
            )
            for call in self
        ]
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [header, *rows]
        ]
        return "\n".join(lines)


@dataclass
class _Recorded:
    module: nn.Module
    query: torch.Size
    key: torch.Size
    valid: Tensor | None
    window: int | None


def find_calls(net: PreTrainedModel) -> AttentionCalls:
    """Runs the network once on a short input and lists its attention calls; leaves it as it was.

    Args:
        net: a Hugging Face network.

    Returns:
        Its calls in the order of a forward pass.

    Raises:
        TypeError: not a Hugging Face network, or one whose attention cannot be replaced; the message says why.
    """
    refuse_unsupported(net)
    records: list[_Recorded] = []

    def record(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        valid = None if attention_mask is None else valid_pairs(module, attention_mask)
        records.append(_Recorded(module, query.shape, key.shape, valid, kwargs.get("sliding_window")))
        return eager_attention(module)(module, query, key, value, attention_mask, **kwargs)

    with implementation(net, RECORDER, record), quiet_evaluation(net):
        base = cast(PreTrainedModel, net.base_model)
        base(**dry_inputs(base))
    if not records:
        raise TypeError(
            f"{type(net).__name__}: no attention call goes through transformers' attention interface; this family "
            "computes attention by itself and cannot be converted"
        )
    return AttentionCalls(_describe(net, records))


def refuse_unsupported(net: object) -> None:
    """Raises TypeError, with the reason, for what cannot be converted.

    Raises:
        TypeError: see above.
    """
    if isinstance(net, nn.DataParallel):
        raise TypeError(
            "DataParallel: its threads would share Pyro's handler stack; convert the network itself and launch one "
            "process per device (accelerate launch, torchrun)"
        )
    if not isinstance(net, PreTrainedModel):
        raise TypeError(
            f"expected a Hugging Face network (transformers.PreTrainedModel), got {type(net).__name__}; for networks "
            "of your own use probattn.MultiheadAttention or probattn.attention"
        )
    if not type(net)._can_set_attn_implementation():
        raise TypeError(
            f"{type(net).__name__}: this family computes attention by itself, not through transformers' attention "
            "interface, so its weights cannot be made latent"
        )


@contextmanager
def implementation(net: PreTrainedModel, name: str, function: Any) -> Iterator[None]:
    """Registers an attention function and switches the network to it for the duration."""
    register(name, function)
    before = implementations(net)
    try:
        switch(net, name)
        yield
    finally:
        restore(before)


def register(name: str, function: Any) -> None:
    """Registers an attention function together with the eager mask: without it padding would vanish silently."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def switch(net: PreTrainedModel, name: str) -> None:
    """Sets the attention implementation and confirms it.

    Raises:
        TypeError: the network ignores it.
    """
    net.set_attn_implementation(name)
    if net.config._attn_implementation != name:
        raise TypeError(
            f"{type(net).__name__}: setting the attention implementation has no effect in this family, so its "
            "weights cannot be made latent"
        )


def implementations(net: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Every configuration in the network, nested ones included, with its attention implementation."""
    waiting = [config for module in net.modules() if (config := getattr(module, "config", None)) is not None]
    configs: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if id(config) not in configs:
            configs[id(config)] = config
            nested = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
            waiting += [each for each in nested if each is not None]
    return [(config, getattr(config, "_attn_implementation_internal", None)) for config in configs.values()]


def restore(before: Sequence[tuple[Any, str | None]]) -> None:
    """Gives configurations back what :func:`implementations` found."""
    for config, name in before:
        config._attn_implementation_internal = name


def _describe(net: PreTrainedModel, records: list[_Recorded]) -> Iterator[AttentionCall]:
    names = {id(module): name for name, module in net.named_modules()}
    repeated = Counter(id(record.module) for record in records)
    seen: Counter[int] = Counter()
    for record in records:
        key = id(record.module)
        index, name = seen[key], names[key]
        seen[key] += 1
        rows, heads, queries, _ = record.query
        _, key_heads, keys, head_dim = record.key
        yield AttentionCall(
            name=f"{name}#{index}" if repeated[key] > 1 else name,
            module=name,
            index=index,
            kind="self" if queries == keys else "cross",
            causal=_is_causal(record),
            stack=_stack(name),
            num_heads=heads,
            num_key_value_heads=key_heads,
            head_dim=head_dim,
            shape=(rows // 2, queries, keys),
            max_positions=_max_positions(net, record),
            window=record.window,
            rows_alike=record.window is None and _rows_alike(record.valid),
        )


def _is_causal(record: _Recorded) -> bool:
    queries, keys = record.query[2], record.key[2]
    if record.valid is None or queries != keys or queries == 1:
        return False
    above = torch.ones(queries, keys, dtype=torch.bool, device=record.valid.device).triu(1)
    return not bool((record.valid & above).any())


def _rows_alike(valid: Tensor | None) -> bool:
    return valid is None or bool((valid == valid[:, :, :1]).all())


def _stack(name: str) -> str:
    parts = name.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0]] if numbered else parts[:-1])


def _max_positions(net: PreTrainedModel, record: _Recorded) -> int | None:
    config = getattr(record.module, "config", net.config)
    if getattr(config, "image_size", None) is not None:
        return int(record.query[2])
    for name in ("max_position_embeddings", "n_positions"):
        longest = getattr(config, name, None)
        if longest is not None:
            return int(longest)
    return None
