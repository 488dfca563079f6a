"""Making a Hugging Face network probabilistic, and deterministic again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, HostedSite
from probattn.models.hosts.calls import AttentionCall, AttentionCalls, Kind, Layers, Part, select
from probattn.models.hosts.discovery import find_calls, refuse_unsupported
from probattn.models.hosts.hosting import (
    RECORD,
    Conversion,
    Methods,
    attach,
    conversion,
    host_of,
    hosted_sites,
    in_order,
    make_plan,
    scale_of,
)
from probattn.models.hosts.interface import implementations, own_configurations, restore, switch
from probattn.models.hosts.methods import Host, place
from probattn.models.hosts.particles import detach
from probattn.models.hosts.passes import StackPass, forget_recomputing
from probattn.models.hosts.peft_networks import refuse_copies, set_up_peft
from probattn.models.hosts.saving import give_exits, take_exits
from probattn.models.hosts.undriven import IMPLEMENTATION, NetworkPasses, forget_outer, take_names
from probattn.sites import BayesianAttention, Method
from probattn.sites.method import Observed, observed
from probattn.sites.particle_layers import RECORD as PARTICLES
from probattn.sites.particle_layers import ParticleLayers, ParticleRecord

__all__ = ["Conversion", "Kind", "Layers", "conversion", "convert", "inspect", "particle", "revert", "select"]

Network = TypeVar("Network", bound=nn.Module)


def inspect(net: PreTrainedModel, *, layers: Layers = "all", attention: Kind = "all") -> AttentionCalls:
    """Lists the attention calls that :func:`convert` would change, or has changed, without changing the network.

    Args:
        net: a Hugging Face network, converted or not.
        layers: which layers of each stack: "all", "first", "last", or their numbers from 0 (negative from the end). In
            a converted network, "first" and "last" count converted layers only; numbers count all layers.
        attention: kind of the calls: "all", "self" (self-attention) or "cross" (cross-attention).

    Returns:
        The calls in the order of a forward pass; ``print`` shows them as a table.

    Raises:
        TypeError: the family's attention cannot be replaced.
        ValueError: the selection is empty or a layer does not exist.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> print(inspect(BertModel(config), layers="last"))
        site                            kind  mask  heads  head size
        encoder.layer.1.attention.self  self  full  2      4
    """
    record = conversion(net)
    if record is None:
        return select(find_calls(host_of(net)), layers, attention)
    if isinstance(layers, str):
        return select(record.plan.touched, layers, attention)
    names = {call.name for call in select(record.plan.calls, layers, attention)}
    selected = AttentionCalls(call for call in record.plan.touched if call.name in names)
    if not selected:
        raise ValueError(f"layers={layers!r}: convert left the attention of these layers as it was")
    return selected


def convert(
    net: Network, *methods: Method, layers: Layers | Part = "all", attention: Kind = "all"
) -> Network:
    """Adds one or more attention methods to a pretrained network, in place; its pretrained weights do not change.

    :class:`probattn.BayesianAttention` makes attention weights latent. :class:`probattn.AlignmentAttention` adds a
    factor that pulls the distributions of queries and keys together and changes neither the computation of attention
    nor its dropout. :class:`probattn.RepulsiveAttention` treats the attention heads' slices of query, key and value
    projections as particles and changes only their gradients in training.
    :class:`probattn.DisagreementAttention` adds a factor that penalises similar heads.
    :class:`probattn.ParticleLayers` gives layers several sets of parameters, the particles.

    Parameters of latent attention and of alignment are in a submodule ``probattn`` of each converted attention module,
    in float32 (float64 in a float64 network); state dicts, ``.to()``, copies and pickles include them. With
    ``BayesianAttention(sigma=0)``, the default, predictions are unchanged until training, up to rounding. Attention
    dropout is not applied to latent weights. The network gets its own copies of its configurations. An attention
    implementation that you set later is used only in forward passes outside Pyro's handlers.

    Args:
        net: a Hugging Face network.
        methods: attention methods, at most one of each class.
        layers: which layers of each stack (encoder, decoder): "all", "first", "last", or their numbers from 0 (negative
            from the end). A layer that is called several times (ALBERT) counts once per call. Also "encoder", "decoder"
            (its self-attention) or "cross" of an encoder-decoder. A method's own ``layers`` takes precedence.
        attention: kind of the calls: "all", "self" or "cross". A method's own ``attention`` takes precedence.

    Returns:
        The same network.

    Raises:
        TypeError: the family's attention cannot be replaced, a method is of another type, or two are of one class.
        ValueError: the network is converted already, the selection is empty, or the options do not suit the network.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> from probattn import AlignmentAttention, BayesianAttention
        >>> net = convert(BertModel(config), BayesianAttention.bam(), AlignmentAttention("gan"))
        >>> [name for name in net.state_dict() if "probattn" in name][0]
        'encoder.layer.0.attention.self.probattn.site.prior.hidden.weight'
    """
    options = in_order(methods)
    set_up_peft()
    inner: PreTrainedModel = host_of(net)
    refuse_unsupported(inner)
    if conversion(inner) is not None:
        raise ValueError(f"{type(inner).__name__} is converted already; revert(net) first")
    if getattr(inner.config, "latent_alignment", None) == "mixture":
        raise ValueError(
            f"{type(inner).__name__}: with config.latent_alignment 'mixture' it answers from single source tokens and "
            "not from its attention, which no method would change; set it to 'soft' or None first"
        )
    configurations = own_configurations(inner)
    try:
        _attach(inner, options, layers, attention)
    except BaseException:
        restore(configurations)
        raise
    return net


def _attach(
    inner: PreTrainedModel,
    options: Methods,
    layers: Layers | Part = "all",
    attention: Kind = "all",
    calls: AttentionCalls | None = None,
) -> None:
    """Adds the methods to a network that has configurations of its own; ``calls`` are its calls, where known."""
    # Made from the configuration of a converted network?
    if inner.config._attn_implementation == IMPLEMENTATION:
        inner.set_attn_implementation("sdpa" if inner._supports_sdpa else "eager")
    calls = calls or find_calls(inner)
    plan = make_plan(options, calls, layers, attention)
    host = Host(inner, {call.stack: StackPass(inner) for call in calls}, tuple(options.values()))
    placements = {kind: place(value.method, value.calls, host) for kind, value in plan.placed.items()}
    hosted = hosted_sites(plan, placements, host)
    for name in hosted:
        refuse_copies(name, ())
    before = implementations(inner)
    try:
        if hosted:
            switch(inner, IMPLEMENTATION)
    except BaseException:
        restore(before)
        raise
    for name, site in hosted.items():
        attach(inner, inner.get_submodule(name), site)
    hooks: list[RemovableHandle] = []
    owners = {call.stack: call.owner for site in hosted.values() for call in site.calls}
    for stack, owner in owners.items():
        module, state = inner.get_submodule(owner), host.stacks[stack]
        state.traceable = all(site.traceable for site in hosted.values() if site.state is state)
        hooks.append(module.register_forward_pre_hook(state.begin, with_kwargs=True))
        hooks.append(module.register_forward_hook(state.end, always_call=True))
    hooks += NetworkPasses.hooks(inner, before, hosted, calls)
    attributes: list[str] = []
    undo: list[Callable[[Any], None]] = []
    for placement in placements.values():
        for name, value in placement.attributes.items():
            setattr(inner, name, value)
            attributes.append(name)
        hooks += map(inner.register_forward_pre_hook, placement.hooks)
        for change, back in placement.changes:
            change(inner)
            undo.append(back)
    record = Conversion(plan, layers, attention, before, hooks, tuple(attributes), tuple(undo))
    setattr(inner, RECORD, record)
    give_exits(inner, record)


def revert(net: Network) -> Network:
    """Undoes :func:`convert`: removes the methods and their parameters; other weights keep their trained values.

    Args:
        net: a converted network.

    Returns:
        The same network; if its layers were particles, with the weights of the first particle.

    Raises:
        ValueError: the network is not converted.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> from probattn import BayesianAttention
        >>> net = revert(convert(BertModel(config), BayesianAttention()))
        >>> any("probattn" in name for name in net.state_dict())
        False
    """
    record = conversion(net)
    if record is None:
        raise ValueError(f"{type(net).__name__} is not converted")
    inner: PreTrainedModel = host_of(net)
    for undo in record.undo:
        undo(inner)
    _detach(inner, record)
    for name in record.attributes:
        delattr(inner, name)
    if scale_of(inner) is not None:
        give_exits(inner, None)
    return net


def _detach(inner: PreTrainedModel, record: Conversion) -> None:
    """Takes sites, hooks and the record away; attributes and changes of the network stay."""
    for hook in record.hooks:
        hook.remove()
    for module in list(inner.modules()):
        forget_recomputing(module)
        forget_outer(module)
        if isinstance(module._modules.get(ATTRIBUTE), HostedSite):
            delattr(module, ATTRIBUTE)
    take_names(record.before)
    restore(record.before)
    delattr(inner, RECORD)
    take_exits(inner)


def particle(net: Network, index: int) -> Network:
    """Copies a network whose layers are particles, with the parameters of one particle.

    Args:
        net: a network converted with :class:`probattn.ParticleLayers`.
        index: number of the particle, from 0; negative numbers count from the end.

    Returns:
        A copy without particles, with the other methods that the network was converted with.

    Raises:
        IndexError: there is no such particle.
        ValueError: the network was not converted with :class:`probattn.ParticleLayers`.
    """
    copied = copy.deepcopy(net)
    inner, record = host_of(copied), conversion(copied)
    particles: ParticleRecord | None = vars(inner).get(PARTICLES)
    if particles is None or record is None:
        raise ValueError(
            f"{type(inner).__name__}: expected a network converted with ParticleLayers, got another"
        )
    count = particles.method.num_particles
    if not -count <= index < count:
        raise IndexError(f"{type(inner).__name__}: expected a particle below {count}, got {index}")
    with torch.no_grad():
        for rows in particles.stacks(inner).values():
            rows[0] = rows[index]
    others = {kind: placed for kind, placed in record.plan.placed.items() if kind is not ParticleLayers}
    if not others:
        return revert(copied)
    detach(inner)
    delattr(inner, PARTICLES)
    record.plan, record.undo = replace(record.plan, placed=others), ()
    record.attributes = tuple(name for name in record.attributes if name != PARTICLES)
    give_exits(inner, record)
    return copied


_CALLS: WeakKeyDictionary[nn.Module, tuple[object, AttentionCalls]] = WeakKeyDictionary()
"""The calls of networks that were copied, with the modules and the configuration that they are of."""


@observed.register
def _observed(model: nn.Module, draws: bool) -> Observed:
    """The module itself, or a copy that shares its weights and attends, at the expectation, as it does."""
    hosts = list(dict.fromkeys(_hosts(model)))
    missing = [host for host in hosts if not _has_all_sites(host)]
    for host in missing:
        record, name = conversion(host), type(host).__name__
        method = None if record is None else record.method
        if draws:
            raise ValueError(
                f"expected latent attention in all layers of {name}, which has layers without; convert all of them, or "
                "leave num_samples out"
            )
        if method is not None and method.learns_scale:
            raise ValueError(
                f"{name}: some layers have latent attention with a learned scale, which changes the expectation, and "
                "others none; convert all of them"
            )
    if missing:
        memo: dict[int, Any] = {id(host): _copy_of(host) for host in missing}
        memo |= {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        model = copy.deepcopy(model, memo)
        hosts = list(dict.fromkeys(_hosts(model)))
    calls = [call for host in hosts for call in inspect(host)]
    if len({call.name for call in calls}) < len(calls):
        raise ValueError(
            f"expected one Hugging Face network, or several whose attention modules have different names, got "
            f"{len(hosts)} with a module {calls[0].name}; explain one of them"
        )
    return Observed(model, _names(calls, decoder=False), _names(calls, decoder=True))


def _hosts(module: nn.Module) -> Iterator[PreTrainedModel]:
    """The outermost Hugging Face networks in a module, without wrappers of the PEFT library."""
    inner = host_of(module)
    if isinstance(inner, PreTrainedModel):
        yield inner
    else:
        for child in module.children():
            yield from _hosts(child)


def _has_all_sites(host: PreTrainedModel) -> bool:
    record = conversion(host)
    return record is not None and len(record.calls) == len(record.plan.calls)


def _copy_of(host: PreTrainedModel) -> PreTrainedModel:
    """A copy with sites everywhere that shares parameters and buffers."""
    record = conversion(host)
    structure = tuple(map(id, host.modules())), str(vars(host.config))
    former, calls = _CALLS.get(host, (None, AttentionCalls()))
    if record is not None:
        calls = record.plan.calls
    elif former != structure:
        calls = find_calls(host)
        _CALLS[host] = structure, calls
    try:
        copied = copy.deepcopy(host, {id(tensor): tensor for tensor in (*host.parameters(), *host.buffers())})
    except (RuntimeError, TypeError) as error:
        raise TypeError(
            f"{type(host).__name__}: expected a network that can be copied, got the error {str(error)!r}; convert it, "
            "in all layers, and it is read as it is"
        ) from error
    present = conversion(copied)
    if present is not None:
        _detach(copied, present)  # particles stay
    own_configurations(copied)
    _attach(copied.eval(), in_order((BayesianAttention.bam(prior="constant"),)), calls=calls)
    return copied


def _names(calls: list[AttentionCall], *, decoder: bool) -> tuple[str, ...]:
    """Sites whose keys are tokens of a side: the encoder's own and those that read it, or the decoder's own."""
    if decoder:
        side = [call for call in calls if call.decoder and call.kind == "self"]
    else:
        side = [call for call in calls if not call.decoder or call.kind == "cross"]
    if windowed := next((call for call in side if call.windowed), None):
        raise ValueError(f"{windowed.name} attends within windows, whose keys are no tokens of the input")
    return tuple(call.name for call in side if call.shape[2] == side[0].shape[2])
