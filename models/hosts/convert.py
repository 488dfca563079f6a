"""Making a Hugging Face network probabilistic, and deterministic again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, IMPLEMENTATION, HostedSite
from probattn.models.hosts.calls import AttentionCalls
from probattn.models.hosts.discovery import find_calls, refuse_unsupported
from probattn.models.hosts.heads import head_record
from probattn.models.hosts.hosting import (
    Method,
    Plan,
    attach,
    check_methods,
    hosted_sites,
    make_plan,
)
from probattn.models.hosts.interface import Implementations, implementations, restore, switch
from probattn.models.hosts.passes import StackPass
from probattn.models.hosts.selection import Kind, Layers, select
from probattn.sites import AlignmentAttention, BayesianAttention, DisagreementAttention
from probattn.sites.repulsive import RECORD as HEADS
from probattn.sites.repulsive import RepulsiveAttention

__all__ = ["Conversion", "Kind", "Layers", "conversion", "convert", "inspect", "revert", "select"]

Network = TypeVar("Network", bound=PreTrainedModel)
RECORD = "_probattn_conversion"


@dataclass(eq=False)
class Conversion:
    """What :func:`convert` did to a network, kept on it for :func:`revert` and for saving.

    Attributes:
        plan: the methods, and which calls became what.
        layers: the layers asked for.
        attention: the kinds asked for.
        before: configurations with their former attention implementation.
        hooks: handles of the hooks added.
    """

    plan: Plan
    layers: Layers
    attention: Kind
    before: Implementations
    hooks: list[RemovableHandle]

    @property
    def method(self) -> BayesianAttention | None:
        """The options of latent attention; None where all attention is deterministic."""
        return self.plan.bayesian

    @property
    def alignment(self) -> AlignmentAttention | None:
        """The options of alignment; None without it."""
        return self.plan.alignment

    @property
    def repulsive(self) -> RepulsiveAttention | None:
        """The options of repulsive heads; None without them."""
        return self.plan.repulsive

    @property
    def disagreement(self) -> DisagreementAttention | None:
        """The options of the penalty on heads that are alike; None without it."""
        return self.plan.disagreement

    @property
    def calls(self) -> AttentionCalls:
        """The calls made latent."""
        return self.plan.latent


def inspect(net: PreTrainedModel, *, layers: Layers = "all", attention: Kind = "all") -> AttentionCalls:
    """Lists the attention calls that :func:`convert` would change, or has changed; the network stays as it is.

    Args:
        net: a Hugging Face network, converted or not.
        layers: which layers of each stack: "all", "first", "last", or their numbers from 0 (negative from the end). In
            a converted network the words are about what it has changed; numbers are those of the network.
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
    if record is None:
        return select(find_calls(net), layers, attention)
    if isinstance(layers, str):
        return select(record.plan.touched, layers, attention)
    wanted = {call.name for call in select(record.plan.calls, layers, attention)}
    chosen = AttentionCalls(call for call in record.plan.touched if call.name in wanted)
    if not chosen:
        raise ValueError(f"layers={layers!r}: convert left the attention of these layers as it was")
    return chosen


def convert(net: Network, *methods: Method, layers: Layers = "all", attention: Kind = "all") -> Network:
    """Gives the attention of a pretrained network a method, or several, in place; its weights stay.

    :class:`probattn.BayesianAttention` makes attention weights latent; :class:`probattn.AlignmentAttention` adds a
    factor that draws queries and keys together, and leaves attention as it is, its dropout included. Both together are
    latent attention with aligned queries and keys. :class:`probattn.RepulsiveAttention` makes the heads of query, key
    and value projections particles; it changes what training does with their gradients and nothing else.
    :class:`probattn.DisagreementAttention` adds a factor by which heads pay for being alike.

    Every chosen attention module gets a submodule ``probattn`` that holds the parameters of its site and its factor, so
    that state dicts, ``.to()``, copies and pickles carry them along. Until it is trained, a network converted with
    sigma 0 answers as before, up to rounding; the host's attention dropout is not applied to latent weights. New
    parameters are float32 (float64 in a float64 network), also beside half-precision weights: they are few, and sites
    compute in float32.

    Args:
        net: a Hugging Face network.
        methods: attention methods, at most one of each kind.
        layers: which layers of each stack: "all", "first", "last", or their numbers from 0 (negative from the end). A
            layer shared by several calls (ALBERT) counts once per call. A method with ``layers`` of its own has these.
        attention: "all", "self" or "cross", likewise.

    Returns:
        The network.

    Raises:
        TypeError: the network's attention cannot be made latent, or a method is none.
        ValueError: the network is converted already, the selection is empty, or the options do not suit it.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), BayesianAttention.bam(), AlignmentAttention("gan"))
        >>> [name for name in net.state_dict() if "probattn" in name][0]
        'encoder.layer.0.attention.self.probattn.site.prior.hidden.weight'
    """
    check_methods(methods)
    refuse_unsupported(net)
    if conversion(net) is not None:
        raise ValueError(f"{type(net).__name__} is converted already; revert(net) first")
    if getattr(net.config, "latent_alignment", None) == "mixture":
        raise ValueError(
            f"{type(net).__name__}: with config.latent_alignment 'mixture' it answers from single source tokens and "
            "not from its attention, which no method would change; set it to 'soft' or None first"
        )
    plan = make_plan(methods, find_calls(net), layers, attention)
    stacks = {call.stack: StackPass() for call in plan.hosted}
    hosted, heads = hosted_sites(plan, stacks, net), head_record(plan.repulsive, plan.repelled, net)
    before = implementations(net)
    try:
        if hosted:
            switch(net, IMPLEMENTATION)
    except BaseException:
        restore(before)
        raise
    for name, site in hosted.items():
        attach(net, net.get_submodule(name), site)
    hooks: list[RemovableHandle] = []
    for stack, owner in {call.stack: call.owner for call in plan.hosted}.items():
        module, state = net.get_submodule(owner), stacks[stack]
        hooks.append(module.register_forward_pre_hook(state.begin, with_kwargs=True))
        hooks.append(module.register_forward_hook(state.end, always_call=True))
    if heads is not None:
        setattr(net, HEADS, heads)
        hooks.append(net.register_forward_pre_hook(refuse_undriven))
    setattr(net, RECORD, Conversion(plan, layers, attention, before, hooks))
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
    if HEADS in vars(net):
        delattr(net, HEADS)
    delattr(net, RECORD)
    return net


def refuse_undriven(net: nn.Module, _: object) -> None:
    """Refuses to train repulsive heads without a driver; a forward pre-hook.

    Raises:
        RuntimeError: in training mode, with gradients, outside all Pyro handlers.
    """
    if net.training and torch.is_grad_enabled() and not am_i_wrapped():
        raise RuntimeError(
            f"{type(net).__name__}: training its repulsive heads without a driver would leave the repulsion out "
            "unnoticed; train with probattn.inference.SVGDDriver, or call .eval() or torch.no_grad() to predict"
        )


def conversion(net: nn.Module) -> Conversion | None:
    """The record of a network's conversion, or None."""
    record: Conversion | None = vars(net).get(RECORD)
    return record
