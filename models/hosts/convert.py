"""Making a Hugging Face network probabilistic, and deterministic again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, IMPLEMENTATION, HostedSite
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.discovery import find_calls, refuse_unsupported
from probattn.models.hosts.interface import Implementations, implementations, restore, switch
from probattn.models.hosts.passes import StackPass
from probattn.models.hosts.selection import Kind, Layers, select
from probattn.sites import AttentionSite, BayesianAttention, SiteSpec, UpwardChain

__all__ = ["Conversion", "Kind", "Layers", "conversion", "convert", "inspect", "revert", "select"]

Network = TypeVar("Network", bound=PreTrainedModel)
RECORD = "_probattn_conversion"


@dataclass(eq=False)
class Conversion:
    """What :func:`convert` did to a network, kept on it for :func:`revert` and for saving.

    Attributes:
        method: the options.
        layers: the layers asked for.
        attention: the kinds asked for.
        calls: the calls made latent.
        before: configurations with their former attention implementation.
        hooks: handles of the hooks added.
    """

    method: BayesianAttention
    layers: Layers
    attention: Kind
    calls: AttentionCalls
    before: Implementations
    hooks: list[RemovableHandle]


def inspect(net: PreTrainedModel, *, layers: Layers = "all", attention: Kind = "all") -> AttentionCalls:
    """Lists the attention calls that :func:`convert` would make latent; the network stays as it is.

    Args:
        net: a Hugging Face network, converted or not.
        layers: which layers of each stack: "all", "first", "last", or their numbers from 0 (negative from the end).
        attention: "all", "self" or "cross".

    Returns:
        The calls in order; print them for a table.

    Raises:
        TypeError: the network's attention cannot be made latent.
        ValueError: the selection is empty or a layer does not exist.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> print(inspect(BertModel(config), layers="last"))
        site                            kind  mask  heads  head size
        encoder.layer.1.attention.self  self  full  2      4
    """
    record = conversion(net)
    return select(find_calls(net) if record is None else record.calls, layers, attention)


def convert(
    net: Network, *methods: BayesianAttention, layers: Layers = "all", attention: Kind = "all"
) -> Network:
    """Makes the attention of a pretrained network latent, in place; its weights stay.

    Every chosen attention module gets a submodule ``probattn`` that holds its site's parameters, so that state dicts,
    ``.to()``, copies and pickles carry them along. Until it is trained, a network converted with sigma 0 answers as
    before, up to rounding; the host's attention dropout is not applied to latent weights. New parameters are float32
    (float64 in a float64 network), also beside half-precision weights: they are few, and sites compute in float32.

    Args:
        net: a Hugging Face network.
        methods: attention methods, one so far: :class:`probattn.BayesianAttention`.
        layers: which layers of each stack: "all", "first", "last", or their numbers from 0 (negative from the end). A
            layer shared by several calls (ALBERT) counts once per call.
        attention: "all", "self" or "cross".

    Returns:
        The network.

    Raises:
        TypeError: the network's attention cannot be made latent, or a method is none.
        ValueError: the network is converted already, the selection is empty, or the options do not suit it.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), BayesianAttention.bam())
        >>> [name for name in net.state_dict() if "probattn" in name][0]
        'encoder.layer.0.attention.self.probattn.site.prior.hidden.weight'
    """
    method = _one_method(methods)
    refuse_unsupported(net)
    if conversion(net) is not None:
        raise ValueError(f"{type(net).__name__} is converted already; revert(net) first")
    calls = find_calls(net)
    selected = select(calls, layers, attention)
    _refuse_positions(method, selected)
    stacks = {call.stack: StackPass() for call in selected}
    hosted = _hosted_sites(method, calls, selected, stacks)
    before = implementations(net)
    try:
        switch(net, IMPLEMENTATION)
    except BaseException:
        restore(before)
        raise
    for name, site in hosted.items():
        _attach(net, net.get_submodule(name), site)
    hooks: list[RemovableHandle] = []
    for stack, owner in {call.stack: call.owner for call in selected}.items():
        module, state = net.get_submodule(owner), stacks[stack]
        hooks.append(module.register_forward_pre_hook(state.begin, with_kwargs=True))
        hooks.append(module.register_forward_hook(state.end, always_call=True))
    setattr(net, RECORD, Conversion(method, layers, attention, selected, before, hooks))
    return net


def revert(net: Network) -> Network:
    """Undoes :func:`convert`: the network is deterministic again, with whatever weights it has by now.

    Args:
        net: a converted network.

    Returns:
        The network.

    Raises:
        ValueError: it is not converted.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = revert(convert(BertModel(config), BayesianAttention()))
        >>> any("probattn" in name for name in net.state_dict())
        False
    """
    record = conversion(net)
    if record is None:
        raise ValueError(f"{type(net).__name__} is not converted")
    for hook in record.hooks:
        hook.remove()
    for module in list(net.modules()):
        if isinstance(module._modules.get(ATTRIBUTE), HostedSite):
            delattr(module, ATTRIBUTE)
    restore(record.before)
    delattr(net, RECORD)
    return net


def conversion(net: nn.Module) -> Conversion | None:
    """The record of a network's conversion, or None."""
    record: Conversion | None = vars(net).get(RECORD)
    return record


def _one_method(methods: Sequence[object]) -> BayesianAttention:
    if len(methods) != 1:
        raise TypeError(
            f"convert: expected one attention method, such as BayesianAttention(), got {len(methods)}"
        )
    if not isinstance(methods[0], BayesianAttention):
        raise TypeError(f"convert: expected a BayesianAttention, got {type(methods[0]).__name__}")
    return methods[0]


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


def _hosted_sites(
    method: BayesianAttention, calls: AttentionCalls, selected: AttentionCalls, stacks: dict[str, StackPass]
) -> dict[str, HostedSite]:
    """One hosted site per attention module of the stacks concerned, joined to the stacks' chains in call order."""
    sites: dict[str, AttentionSite] = {}
    indices: dict[str, list[int]] = defaultdict(list)
    for call in selected:
        chain = stacks[call.stack].chains.setdefault(call.chain, UpwardChain())
        indices[call.module].append(call.index)
        if call.module in sites:
            sites[call.module].join(chain)
        else:
            sites[call.module] = _site(method, call, chain)
    crossed = {call.stack for call in selected if call.kind == "cross"}
    by_module: dict[str, list[AttentionCall]] = defaultdict(list)
    for call in calls:
        # Deterministic self attention shows a latent cross attention which queries are real.
        if call.module in sites or (call.stack in crossed and call.kind == "self"):
            by_module[call.module].append(call)
    return {
        name: HostedSite(sites.get(name), tuple(own), tuple(indices[name]), stacks[own[0].stack])
        for name, own in by_module.items()
    }


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


def _attach(net: PreTrainedModel, module: nn.Module, site: HostedSite) -> None:
    reference = next(module.parameters(), None)
    device = net.device if reference is None else reference.device
    dtype = torch.float64 if net.dtype == torch.float64 else torch.float32
    module.add_module(ATTRIBUTE, site.to(device=device, dtype=dtype).train(module.training))
