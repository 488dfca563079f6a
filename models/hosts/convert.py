"""Making a Hugging Face network probabilistic, and deterministic again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from probattn.attention import AttentionSite, BayesianAttention, SiteSpec, UpwardChain
from probattn.models.hosts.adapter import (
    ATTRIBUTE,
    IMPLEMENTATION,
    WITNESS,
    HostedSite,
    PassState,
    Witness,
    host_attention,
    refuse_checkpointing,
)
from probattn.models.hosts.discovery import (
    AttentionCall,
    AttentionCalls,
    find_calls,
    implementations,
    refuse_unsupported,
    register,
    restore,
    switch,
)

Layers = Literal["all", "first", "last"] | Sequence[int]
Kind = Literal["all", "self", "cross"]
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
        state: what the sites share in a forward pass.
        before: configurations with their former attention implementation.
        hooks: handles of the hooks added.
    """

    method: BayesianAttention
    layers: Layers
    attention: Kind
    calls: AttentionCalls
    state: PassState
    before: list[tuple[Any, str | None]]
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
        TypeError: the network's attention cannot be replaced.
        ValueError: the selection is empty or a layer does not exist.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> print(inspect(BertModel(config), layers="last"))
        site                            kind  heads  key heads  head size  causal
        encoder.layer.1.attention.self  self  2      2          4          no
    """
    record = conversion(net)
    return select(find_calls(net) if record is None else record.calls, layers, attention)


def convert(
    net: Network, *methods: BayesianAttention, layers: Layers = "all", attention: Kind = "all"
) -> Network:
    """Makes the attention of a pretrained network latent, in place; its weights stay.

    Every chosen attention module gets a submodule ``probattn`` that holds its site's parameters, so that state dicts,
    ``.to()`` and copies carry them along. Until it is trained, a network converted with sigma 0 answers as before.

    Args:
        net: a Hugging Face network.
        methods: attention methods, one so far: :class:`probattn.BayesianAttention`.
        layers: which layers of each stack, as in :func:`inspect`.
        attention: "all", "self" or "cross".

    Returns:
        The network.

    Raises:
        TypeError: the network's attention cannot be replaced, or a method is none.
        ValueError: the network is converted already, the selection is empty, or the options do not suit it.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), BayesianAttention())
        >>> sum("probattn" in name for name, _ in net.named_parameters()) > 0
        True
    """
    method = _one_method(methods)
    refuse_unsupported(net)
    if conversion(net) is not None:
        raise ValueError(f"{type(net).__name__} is converted already; revert(net) first")
    found = find_calls(net)
    calls = select(found, layers, attention)
    state = PassState()
    hosted = _hosted_sites(method, found, calls, state)  # may refuse; nothing has changed yet
    before = implementations(net)
    register(IMPLEMENTATION, host_attention)
    try:
        switch(net, IMPLEMENTATION)
    except BaseException:
        restore(before)
        raise
    for name, site in hosted.items():
        module = net.get_submodule(name)
        reference = next(module.parameters(), None)
        device = net.device if reference is None else reference.device
        module.add_module(ATTRIBUTE, site.to(device).train(module.training))
    for name, witness in _witnesses(found, calls, state).items():
        setattr(net.get_submodule(name), WITNESS, witness)
    hooks: list[RemovableHandle] = []
    for root in _pass_roots(net, calls):
        hooks += [
            root.register_forward_pre_hook(refuse_checkpointing),
            root.register_forward_pre_hook(state.begin, with_kwargs=True),
            root.register_forward_hook(state.clear, always_call=True),
        ]
    setattr(net, RECORD, Conversion(method, layers, attention, calls, state, before, hooks))
    return net


def revert(net: Network) -> Network:
    """Undoes :func:`convert`: the network is deterministic again, with whatever weights it has by now.

    Args:
        net: a converted network.

    Returns:
        The network.

    Raises:
        ValueError: it is not converted.
    """
    record = conversion(net)
    if record is None:
        raise ValueError(f"{type(net).__name__} is not converted")
    for hook in record.hooks:
        hook.remove()
    for call in record.calls:
        module = net.get_submodule(call.module)
        if hasattr(module, ATTRIBUTE):
            delattr(module, ATTRIBUTE)
    for module in net.modules():
        if hasattr(module, WITNESS):
            delattr(module, WITNESS)
    restore(record.before)
    delattr(net, RECORD)
    return net


def conversion(net: nn.Module) -> Conversion | None:
    """The record of a network's conversion, or None."""
    found: Conversion | None = getattr(net, RECORD, None)
    return found


def select(calls: AttentionCalls, layers: Layers, attention: Kind) -> AttentionCalls:
    """The calls of the chosen layers and kinds.

    Raises:
        ValueError: an unknown word, a layer that does not exist, or nothing chosen.
    """
    if attention not in {"all", "self", "cross"}:
        raise ValueError(f"attention: expected 'all', 'self' or 'cross', got {attention!r}")
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for call in calls:
        if attention in {"all", call.kind} and call.module not in groups[call.stack, call.kind]:
            groups[call.stack, call.kind].append(call.module)
    chosen = {module for modules in groups.values() for module in _pick(modules, layers)}
    selected = AttentionCalls(
        call for call in calls if call.module in chosen and attention in {"all", call.kind}
    )
    if not selected:
        raise ValueError(
            f"no attention call with layers={layers!r} and attention={attention!r} in this network"
        )
    return selected


def _pick(modules: list[str], layers: Layers) -> list[str]:
    if isinstance(layers, str):
        slices = {"all": slice(None), "first": slice(0, 1), "last": slice(-1, None)}
        if layers not in slices:
            raise ValueError(f"layers: expected 'all', 'first', 'last' or numbers, got {layers!r}")
        return modules[slices[layers]]
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -len(modules) <= layer < len(modules):
            raise ValueError(f"layers: expected numbers from 0 to {len(modules) - 1}, got {layer!r}")
    return [modules[layer] for layer in layers]


def _one_method(methods: Sequence[object]) -> BayesianAttention:
    if len(methods) != 1:
        raise TypeError(
            f"convert: expected one attention method, such as BayesianAttention(), got {len(methods)}"
        )
    if not isinstance(methods[0], BayesianAttention):
        raise TypeError(f"convert: expected a BayesianAttention, got {type(methods[0]).__name__}")
    return methods[0]


def _hosted_sites(
    method: BayesianAttention, found: AttentionCalls, calls: AttentionCalls, state: PassState
) -> dict[str, HostedSite]:
    """One hosted site per attention module, joined to one chain per stack, kind and shape."""
    hosted: dict[str, HostedSite] = {}
    chains: dict[tuple[object, ...], UpwardChain] = {}
    causal = {
        call.stack for call in found if call.causal
    }  # their cross attention must not mix queries either
    for call in calls:
        key = (call.stack, call.kind, call.num_heads, call.shape, call.window)
        chain = chains.setdefault(key, UpwardChain())
        if call.module in hosted:
            hosted[call.module].site.join(chain)
            hosted[call.module].names.append(call.name)
        else:
            site = _site(method, call, chain, causal=call.stack in causal)
            hosted[call.module] = HostedSite(
                site, [call.name], call.kind, call.stack, state, windowed=call.windowed
            )
    state.chains.extend(chains.values())
    return hosted


def _site(
    method: BayesianAttention, call: AttentionCall, chain: UpwardChain, *, causal: bool
) -> AttentionSite:
    if method.has_upward_path and method.upward == "positions" and not (causal or call.rows_alike):
        raise ValueError(
            f"{call.name}: upward='positions' mixes queries, but here queries see different keys (windows); "
            "use upward='heads'"
        )
    spec = SiteSpec(
        call.num_heads,
        call.head_dim,
        causal=causal,
        max_positions=call.max_positions,
        kind=call.kind,
        windowed=call.windowed,
    )
    try:
        return AttentionSite(method, spec, chain)
    except ValueError as error:
        raise ValueError(f"{call.name}: {error}") from error


def _witnesses(found: AttentionCalls, calls: AttentionCalls, state: PassState) -> dict[str, Witness]:
    """For every stack whose latent cross attention follows no latent self attention: its first self attention."""
    witnesses: dict[str, Witness] = {}
    settled: set[str] = set()
    for call in found:
        if call.kind == "self" and call.stack not in settled:
            settled.add(call.stack)
            latent = {other.kind for other in calls if other.stack == call.stack}
            if "cross" in latent and call.module not in {other.module for other in calls}:
                witnesses[call.module] = Witness(call.stack, state)
    return witnesses


def _pass_roots(net: PreTrainedModel, calls: AttentionCalls) -> list[nn.Module]:
    """The modules whose forward delimits a pass: the network and, for those who call less, each stack's owner."""
    names = dict.fromkeys(["", *(call.stack.rpartition(".")[0] for call in calls)])
    return [net.get_submodule(name) for name in names]
