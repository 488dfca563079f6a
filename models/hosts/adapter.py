"""The attention function that converted networks call, and what it remembers within a forward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from probattn.attention import AttentionMask, AttentionSite, UpwardChain
from probattn.models.hosts.eager import eager_attention
from probattn.models.hosts.masks import carries_bias, own_keys, valid_pairs

IMPLEMENTATION = "probattn"
"""Name under which the attention function is registered with transformers."""

ATTRIBUTE = "probattn"
"""Name of the submodule that a converted attention module holds."""

WITNESS = "_probattn_witness"
"""Name of the attribute of a self attention that stays deterministic but shows a cross attention its real queries."""


@dataclass(eq=False)
class PassState:
    """What the sites of one network share during a forward pass; cleared before and after each.

    Attributes:
        chains: the network's upward chains.
        calls: how often each attention module was called in this pass.
        masks: translated masks beside the tensors they come from: a family hands the same one to every layer.
        queries: the real queries that a stack's last self attention saw, for the cross attention that follows.
        rows: the batch size of the module that is running, for calls on several windows of one datum.
    """

    chains: list[UpwardChain] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    masks: list[tuple[Tensor, str, AttentionMask]] = field(default_factory=list)
    queries: dict[str, Tensor] = field(default_factory=dict)
    rows: int | None = None

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Starts a pass; serves as a module's forward pre-hook with keywords."""
        self.clear()
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim())
        first = next(tensors, None)
        self.rows = None if first is None else len(first)

    def clear(self, *_: object) -> None:
        """Forgets the pass; serves as a module's forward hook as it is."""
        self.calls.clear()
        self.masks.clear()
        self.queries.clear()
        self.rows = None
        for chain in self.chains:
            chain.clear()


class HostedSite(nn.Module):
    """A site with its place in the host; the submodule that conversion adds to an attention module.

    Args:
        site: the latent attention.
        names: site names of the module's calls in a forward pass, in order.
        kind: "self" or "cross".
        stack: the list of layers it belongs to.
        state: the network's.
        windowed: whether the host folds windows of a datum into the batch, ``[B * W, H, T, D]``. The site then sees
            the windows beside the heads, ``[B, W * H, T, D]``, so that its batch is the data's.
    """

    def __init__(
        self,
        site: AttentionSite,
        names: list[str],
        kind: Literal["self", "cross"],
        stack: str,
        state: PassState,
        windowed: bool = False,
    ) -> None:
        super().__init__()
        self.site = site
        self.names = names
        self.kind = kind
        self.stack = stack
        self.state = state
        self.windowed = windowed

    def extra_repr(self) -> str:
        """Name and kind, for ``print(network)``."""
        return f"{', '.join(self.names)}, {self.kind}"

    def next_call(self) -> int:
        """Which of the module's calls in this forward pass comes now."""
        call = self.state.calls[self.names[0]] % len(self.names)
        self.state.calls[self.names[0]] += 1
        return call

    def windows(self, rows: int) -> int:
        """How many windows of a datum stand in a call of ``rows`` rows.

        Raises:
            RuntimeError: the attention module runs outside the network that was converted.
        """
        if not self.windowed:
            return 1
        data = self.state.rows
        if not data or rows % data:
            raise RuntimeError(
                f"site {self.names[0]!r}: its host folds windows into the batch, whose size is not known in this "
                "pass; call the whole network"
            )
        return rows // data

    def mask(self, module: nn.Module, additive: Tensor, queries: int, keys: int, batch: int) -> AttentionMask:
        """The host's mask, translated once per forward pass and kind."""
        for tensor, kind, mask in self.state.masks:
            if tensor is additive and kind == self.kind:
                return mask
        valid = valid_pairs(module, additive[..., :keys]).expand(batch, -1, -1, -1)
        real = self._queries(module, valid, queries)
        mask = AttentionMask(beside_heads(valid, self.windows(batch)), real)
        self.state.masks.append((additive, self.kind, mask))
        return mask

    def _queries(self, module: nn.Module, valid: Tensor, queries: int) -> Tensor | None:
        if carries_bias(module):
            return None
        if self.kind == "self":
            own = own_keys(valid, queries)
            self.state.queries[self.stack] = own
            return own
        known = self.state.queries.get(self.stack)
        return known if known is not None and known.shape == (len(valid), queries) else None


@dataclass(eq=False)
class Witness:
    """A deterministic self attention in a stack whose cross attention is latent: it sees which queries are real."""

    stack: str
    state: PassState

    def see(self, module: nn.Module, query: Tensor, key: Tensor, additive: Tensor | None) -> None:
        """Notes the real queries of the stack."""
        if additive is not None:
            valid = valid_pairs(module, additive[..., : key.shape[2]]).expand(len(query), -1, -1, -1)
            self.state.queries[self.stack] = own_keys(valid, query.shape[2])


def beside_heads(tensor: Tensor, windows: int) -> Tensor:
    """``[B * W, H, ...]`` as ``[B, W * H, ...]``; one row for all stays one row."""
    if windows == 1:
        return tensor
    if len(tensor) == 1:
        return tensor.repeat(1, windows, *[1] * (tensor.dim() - 2))
    return tensor.reshape(len(tensor) // windows, windows * tensor.shape[1], *tensor.shape[2:])


def host_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a converted network, with the signature of transformers' attention functions.

    Modules without a site attend as their family's eager function does. Dropout is not applied to stochastic weights.

    Args:
        module: the host's attention module.
        query: ``[B, H, T, D]``.
        key: ``[B, G, S, D]``.
        value: ``[B, G, S, E]``.
        attention_mask: additive ``[B, 1 or H, T, S]``, or None.
        scaling: factor of the scores.
        dropout: the host's attention dropout.
        **kwargs: what families add: ``position_bias``, ``softcap``.

    Returns:
        Output ``[B, T, H, E]``, contiguous, and weights ``[B, H, T, S]``.
    """
    hosted: HostedSite | None = getattr(module, ATTRIBUTE, None)
    if hosted is None:
        witness: Witness | None = getattr(module, WITNESS, None)
        if witness is not None:
            witness.see(module, query, key, attention_mask)
        return eager_attention(module)(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    call = hosted.next_call()
    rows, heads = query.shape[:2]
    windows = hosted.windows(rows)
    bias, mask = kwargs.get("position_bias"), None
    if attention_mask is not None:
        mask = hosted.mask(module, attention_mask, query.shape[2], key.shape[2], rows)
        if carries_bias(module):
            own = attention_mask.masked_fill(~valid_pairs(module, attention_mask), 0.0)
            bias = own if bias is None else own + bias
    output, weights = hosted.site(
        hosted.names[call],
        *(beside_heads(tensor, windows) for tensor in (query, key, value)),
        mask,
        scale=scaling,
        bias=None if bias is None else beside_heads(bias, windows),
        softcap=kwargs.get("softcap"),
        call=call,
    )
    if windows > 1:
        output, weights = (each.reshape(rows, heads, *each.shape[2:]) for each in (output, weights))
    return output.transpose(1, 2).contiguous(), weights


def refuse_checkpointing(module: nn.Module, _: object) -> None:
    """Forward pre-hook: activation checkpointing would run a site twice.

    Raises:
        RuntimeError: the module is being trained with activation checkpointing.
    """
    if not (module.training and torch.is_grad_enabled()):
        return
    if any(getattr(part, "gradient_checkpointing", False) for part in module.modules()):
        raise RuntimeError(
            f"{type(module).__name__}: activation checkpointing recomputes attention during the backward pass, "
            "outside Pyro's handlers, and is not supported; call activation_checkpointing_disable(), in older versions "
            "of transformers gradient_checkpointing_disable()"
        )
