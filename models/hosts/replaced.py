"""Modules around attention modules, which may be replaced after conversion, or whose forward may."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from probattn.models.hosts.calls import AttentionCall
from probattn.sites.handlers import refuse_replaced

Code = tuple[str, int]
"""File and first line of a function: a copy and a pickled network have them too."""
STATES = ("encoder_hidden_states", "cross_attention_states")
"""Parameters of a layer that are the keys of its cross attention; without them it runs none."""


class OuterCall(NamedTuple):
    """A call of a module around attention modules in a pass."""

    module: nn.Module
    is_other: bool  # put in place of the module that was there at conversion
    has_states: bool  # got the keys of cross attentions, or none is known to lack them


class Outer(NamedTuple):
    """What a module around attention modules was at conversion.

    ``hosts`` are the attention modules in it and ``children`` the next modules on the way to these, by name, with their
    keys from here; ``states`` is the position of the states of its cross attentions, which ``code`` takes.
    """

    hosts: tuple[str, ...]
    children: Mapping[str, tuple[str, ...]]
    code: Code
    states: int | None

    def call(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], other: bool
    ) -> OuterCall:
        """The record of a call with these arguments."""
        states = [kwargs.get(name) for name in STATES]
        if self.states is not None:
            states += args[self.states : self.states + 1]
        return OuterCall(module, other, self.states is None or any(value is not None for value in states))

    def allows(self, call: OuterCall, name: str, attention: AttentionCall, ran: Collection[str]) -> bool:
        """Whether a call under this name, of which code or module was replaced, may leave an attention module out.

        Layer dropout may leave out all layers. Otherwise something in the module must run; parts may be left out, such
        as an encoder whose states are there already, and the cross attention of a decoder that is used alone.
        """
        if name == attention.owner and may_drop_layers(call.module):
            return True
        if not any(host in ran for host in self.hosts):
            return False
        above = name != attention.owner and f"{attention.owner}.".startswith(f"{name}." if name else "")
        return above or (attention.kind == "cross" and not call.has_states)


def check_outer(
    network: str,
    outer: Mapping[str, Outer],
    calls: Mapping[str, OuterCall],
    left_out: Mapping[str, AttentionCall],
    ran: Collection[str],
    name_of: Callable[[nn.Module], str | None],
) -> list[str]:
    """Refuses a pass in which a replaced module left attention modules out; the ones that the network has lost."""
    removed = []
    for host, attention in left_out.items():
        name = next((name for name in reversed([*_prefixes(host), host]) if name in calls), None)
        if name is None:
            continue
        call, before = calls[name], outer[name]
        if call.is_other or code_of(call.module) != before.code:
            if not before.allows(call, name, attention, ran):
                refuse_replaced(network, host, name or network)
            continue
        child = next(child for child in before.children if f"{host}.".startswith(f"{child}."))
        module = module_at(call.module, before.children[child])
        watched = None if module is None else name_of(module)
        if module is not None and watched is None:
            refuse_replaced(network, host, child)
        if watched != child:
            removed.append(host)
    return removed


def outer_modules(net: nn.Module, attentions: Mapping[str, AttentionCall]) -> dict[str, Outer]:
    """The modules of a network that run these attention modules, itself among them, and these, by name."""
    inside: dict[str, list[str]] = {}
    for host in attentions:
        for name in (*_prefixes(host), host):
            if not isinstance(net.get_submodule(name), nn.ModuleList | nn.ModuleDict):  # which are not called
                inside.setdefault(name, []).append(host)
    children: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in inside}
    for host in attentions:
        path = [name for name in (*_prefixes(host), host) if name in inside]
        for name, child in pairwise(path):
            children[name][child] = tuple(child[len(name) :].strip(".").split("."))
    modules = {name: net.get_submodule(name) for name in inside}
    crossed = {
        name for name, hosts in inside.items() if any(attentions[host].kind == "cross" for host in hosts)
    }
    return {
        name: Outer(
            tuple(inside[name]),
            children[name],
            code_of(module),
            _states_position(module) if name in crossed else None,
        )
        for name, module in modules.items()
    }


def module_at(module: nn.Module, keys: Sequence[str]) -> nn.Module | None:
    """The module under these keys; None where there is none."""
    current: nn.Module | None = module
    for key in keys:
        current = None if current is None else current._modules.get(key)
    return current


def may_drop_layers(network: Any) -> bool:
    """Whether a pass may leave out all layers of a part, by layer dropout in training."""
    rates = vars(getattr(network, "config", None) or object).items()
    return network.training and any(rate for name, rate in rates if name.endswith("layerdrop"))


def code_of(module: nn.Module) -> Code:
    """The code of a module's forward."""
    forward = vars(module).get("forward", type(module).forward)
    code = getattr(getattr(forward, "__func__", forward), "__code__", None)
    return (type(forward).__name__, 0) if code is None else (code.co_filename, code.co_firstlineno)


def _prefixes(name: str) -> Iterator[str]:
    """The names of the modules around one, from the network's own, which is empty."""
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(len(parts)))


def _states_position(module: nn.Module) -> int | None:
    parameters = list(inspect.signature(type(module).forward).parameters)[1:]
    return next((parameters.index(name) for name in STATES if name in parameters), None)
