"""Passes of a converted network: they reach its sites, or attend with the function that it had before conversion."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.jit._trace import is_tracing
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel

from probattn.models.hosts.calls import AttentionCall
from probattn.models.hosts.eager import Attended, HostCall, is_bridge
from probattn.models.hosts.replaced import (
    Outer,
    OuterCall,
    check_outer,
    may_drop_layers,
    module_at,
    outer_modules,
)
from probattn.sites import AttentionSite
from probattn.sites.handlers import (
    ThreadList,
    hooked_call,
    is_replaced,
    is_running,
    may_look,
    refuse_none,
    refuse_unreached,
    takes_expectations,
)
from probattn.sites.traced import GraphPass, compiled_pass, graph_pass

if TYPE_CHECKING:
    from probattn.models.hosts.adapter import HostedSite

IMPLEMENTATION = "probattn"
"""Name under which the attention function of converted networks is registered with transformers."""
Implementations = list[tuple[Any, str, Any]]
"""Attributes that a conversion sets, each with its owner and its former value."""
CONFIGURED = "_attn_implementation_internal"
"""Where a configuration has the name of its attention implementation."""
OWN_FUNCTIONS = ("eager", "sdpa", "flex_attention")
"""Implementations that attend alike under another name; flash attention reads the name from the configuration."""


@dataclass
class _Pass:
    """A thread's pass: its outermost call, and by name the modules that ran and those that reached their sites."""

    owner: NetworkPasses
    undriven: bool
    call: FrameType | None
    depth: int = 0
    ran: dict[nn.Module, str] = field(default_factory=dict)
    reached: set[nn.Module] = field(default_factory=set)
    outer: dict[str, OuterCall] = field(default_factory=dict)


_PASSES = ThreadList()
"""Of the converted networks that run in a thread, one inside another."""


def _current() -> _Pass | None:
    """This thread's innermost pass, without what an interrupt has left behind."""
    while _PASSES and not is_running(_PASSES[-1].call):
        _PASSES.pop()
    return _PASSES[-1] if _PASSES else None


class NetworkPasses:
    """Forward passes of a converted network: as before conversion outside a driver, else through its sites.

    Outside a driver, where nothing wants weights, passes are those of the former implementation bit for bit. In others
    attention modules with sites must run and reach them; what goes round them is refused where the pass ends.
    """

    is_active: ClassVar[bool] = False
    """Its hooks look at no tensors."""

    def __init__(
        self,
        before: Implementations,
        hosts: Mapping[nn.Module, HostedSite],
        members: Collection[nn.Module],
        outer: Mapping[str, Outer],
        attends_as_before: bool,
    ) -> None:
        self._before = before
        self._configs = [config for config, attribute, _ in before if attribute == CONFIGURED]
        self._hosts = hosts
        self._names = {host: hosted.calls[0].module for host, hosted in hosts.items()}
        self.members = members
        self._outer = outer
        self._named_removed = False
        self._attends_as_before = attends_as_before

    @classmethod
    def hooks(
        cls,
        net: PreTrainedModel,
        before: Implementations,
        hosted: Mapping[str, HostedSite],
        calls: Iterable[AttentionCall],
    ) -> list[RemovableHandle]:
        """Hooks all parts of a network that :func:`~probattn.models.convert` has switched."""
        names = [name for _, attribute, name in before if attribute == CONFIGURED]
        sites = [hosting.site for hosting in hosted.values() if hosting.site is not None]
        attends_as_before = not (
            any(name not in OWN_FUNCTIONS for name in names)
            or not all(isinstance(site, AttentionSite) for site in sites)
            or any(site.method.learns_scale for site in sites)
            or any(is_bridge(module) for module in net.modules())
        )
        hosts = {net.get_submodule(name): hosting for name, hosting in hosted.items()}
        looked_into = set(net.base_model.modules())
        members = {net.get_submodule(call.module) for call in calls}
        members |= {  # attention of its head, which has no sites
            module
            for module in net.modules()
            if hasattr(module, "config")
            and not isinstance(module, PreTrainedModel)
            and module not in looked_into
        }
        outer = outer_modules(net, {name: hosting.calls[0] for name, hosting in hosted.items()})
        passes = cls(before, hosts, members, outer, attends_as_before)
        handles = [host.register_forward_pre_hook(passes.meet) for host in hosts]
        for network in net.modules() if hosts else ():
            if isinstance(network, PreTrainedModel):
                site = next(
                    (name for module in network.modules() if (name := passes._names.get(module))), None
                )
                enter, leave = partial(passes.enter, site=site), partial(passes.leave, site=site)
                handles.append(network.register_forward_pre_hook(enter, with_kwargs=True))
                handles.append(network.register_forward_hook(leave, always_call=True))
        for name in outer.keys() - hosted.keys():  # passes refer neither to these nor to parts, to free them
            passes._watch(net.get_submodule(name), name)
        return handles

    def _watch(self, module: nn.Module, name: str, *, other: bool = False) -> None:
        takes_states = self._outer[name].states is not None
        meet = self.meet_states if takes_states else self.meet_outer
        module.register_forward_pre_hook(  # which revert looks for
            partial(meet, name=name, other=other), with_kwargs=takes_states
        )

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, site: str | None
    ) -> None:
        """A forward pre-hook of a part, whose first attention module with a site is ``site``; the outermost decides."""
        within = graph_pass()
        if within is not None and site is not None and not may_drop_layers(module):
            within.expected[self, type(module).__name__] = site
        if compiled_pass() is None:
            self._enter(module, kwargs)
        elif any(getattr(config, CONFIGURED) != IMPLEMENTATION for config in self._configs):
            self._connect()

    @torch.compiler.disable(reason="passes are kept by thread")
    def _enter(self, module: nn.Module, kwargs: Mapping[str, Any]) -> None:
        current = _current()
        if current is None or current.owner is not self:
            self._connect()
            _refuse_other(module)
            current = _Pass(self, self._is_undriven(module, kwargs), hooked_call())
            _PASSES.append(current)
        _refuse_other(module)
        current.depth += 1

    def meet(self, host: nn.Module, _: tuple[Any, ...]) -> None:
        """A forward pre-hook of an attention module."""
        _refuse_other(host)
        within = graph_pass()
        if within is not None:
            within.ran.add((self._hosts[host].state, self._names[host]))
        if compiled_pass() is None:
            self._meet(host)

    @torch.compiler.disable(reason="passes are kept by thread")
    def _meet(self, host: nn.Module) -> None:
        current = _current()
        if current is not None and current.owner is self:
            current.ran[host] = self._names[host]

    def meet_outer(self, module: nn.Module, _: object, *, name: str, other: bool = False) -> None:
        """A forward pre-hook of a module around attention modules, or of ``other`` that is in its place."""
        within = graph_pass()
        if within is not None:
            within.outer[self, name] = OuterCall(module, other, True)
        if compiled_pass() is None:
            self._meet_outer(module, name, other, None, None)

    def meet_states(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, *, name: str, other: bool = False
    ) -> None:
        """The same of one that may be called without the keys of its cross attentions."""
        within = graph_pass()
        if within is not None:
            within.outer[self, name] = self._outer[name].call(module, args, kwargs, other)
        if compiled_pass() is None:
            self._meet_outer(module, name, other, args, kwargs)

    @torch.compiler.disable(reason="passes are kept by thread")
    def _meet_outer(self, module: nn.Module, name: str, other: bool, args: Any, kwargs: Any) -> None:
        current = _current()
        if current is None or current.owner is not self or current.undriven:
            return
        call = self._outer[name].call(module, args or (), kwargs or {}, other)
        current.outer[name] = call
        for child, keys in () if call.is_other else self._outer[name].children.items():
            inner = module_at(call.module, keys)
            if inner is not None and self._name_of(inner) is None:
                self._watch(inner, child, other=True)

    def _name_of(self, module: nn.Module) -> str | None:
        """The name under which a module is watched."""
        if module in self._names:
            return self._names[module]
        hooks = module._forward_pre_hooks.values()
        mine = (
            hook
            for hook in hooks
            if isinstance(hook, partial) and hook.func in (self.meet_outer, self.meet_states)
        )
        return next((hook.keywords["name"] for hook in mine), None)

    def _ran(self, within: GraphPass | None) -> set[str]:
        """The names of the attention modules that ran in this thread's pass, or in a graph."""
        if within is None:
            return set()
        return {name for host, name in self._names.items() if (self._hosts[host].state, name) in within.ran}

    def check_graph(self, network: str, within: GraphPass, site: str | None = None) -> None:
        """The same of a graph; refuses one in which no attention module ran, of which ``site`` is the first."""
        calls = {name: call for (passes, name), call in within.outer.items() if passes is self}
        ran = self._ran(within)
        self.check_outer(network, calls, ran)
        if site is not None and not ran:
            refuse_none(network, site)

    def check_outer(self, network: str, calls: Mapping[str, OuterCall], ran: Collection[str]) -> None:
        """Refuses a pass in which a module was replaced and left attention modules out; says once what was removed."""
        left_out = {name: self._hosts[host].calls[0] for host, name in self._names.items() if name not in ran}
        if not left_out:
            return
        removed = check_outer(network, self._outer, calls, left_out, ran, self._name_of)
        if removed and not self._named_removed:
            self._named_removed = True
            warnings.warn(
                f"{network}: after conversion {removed[0]} was removed from the network ({len(removed)} of "
                f"{len(self._names)} attention modules), so that its posterior is that of the others; put it back, or "
                "call probattn.models.revert(net) and convert the network again",
                stacklevel=2,
            )

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: object, *, site: str | None) -> None:
        """A forward hook of a part that runs after errors too."""
        if compiled_pass() is None:
            self._leave(module, site, output is not None)

    @torch.compiler.disable(reason="passes are kept by thread")
    def _leave(self, module: nn.Module, site: str | None, succeeded: bool) -> None:
        current = _current()
        if current is None or current.owner is not self:
            return
        current.depth -= 1
        if current.depth:
            return
        _PASSES.remove(current)
        if succeeded and not current.undriven:
            network = type(module).__name__
            names = [name for host, name in current.ran.items() if host not in current.reached]
            refuse_unreached(network, names, len(current.ran))
            within = graph_pass()
            self.check_outer(network, current.outer, {*current.ran.values(), *self._ran(within)})
            if site is not None and not current.ran and within is None and not may_drop_layers(module):
                refuse_none(network, site)

    @torch.compiler.disable(reason="a name that was set after conversion is taken over once")
    def _connect(self) -> None:
        """Takes a name that was set after conversion for that of passes outside a driver."""
        for config in self._configs:
            name = getattr(config, CONFIGURED)
            if name not in (IMPLEMENTATION, None, *OWN_FUNCTIONS):
                raise RuntimeError(
                    f"{type(config).__name__}: the attention implementation was set to {name!r} after conversion, "
                    "which has no attention sites; set 'eager' or 'sdpa', or call probattn.models.revert(net), set it "
                    "and convert the network again"
                )
        take_names(self._before)

    def former(self, config: object) -> str | None:
        """The implementation that a configuration had."""
        return next((name for owner, _, name in self._before if owner is config), None)

    def _is_undriven(self, module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
        if not self._attends_as_before or not takes_expectations():
            return False
        if torch.compiler.is_exporting() or is_tracing():
            return False
        requested = kwargs.get("output_attentions")
        if requested or (requested is None and getattr(module.config, "output_attentions", False)):
            return False
        return not any(_is_watched(host, hosted) for host, hosted in self._hosts.items())


def refuse_stranger(module: nn.Module) -> None:
    """Refuses an attention module without a site that was put into a network after conversion."""
    current = _current()
    if current is not None and module not in current.owner.members:
        raise RuntimeError(
            f"{type(module).__name__}: this attention module was put into a converted network, whose sites it has none "
            "of; put it in before the conversion: probattn.models.revert(net), change it and convert it again"
        )


def take_names(before: Implementations) -> None:
    """Takes names that configurations were given after conversion for those that they had before it."""
    for number, (owner, attribute, _) in enumerate(before):
        name = getattr(owner, CONFIGURED, None) if attribute == CONFIGURED else IMPLEMENTATION
        if name != IMPLEMENTATION:
            before[number] = owner, attribute, "eager" if name is None else name
            setattr(owner, CONFIGURED, IMPLEMENTATION)


def forget_outer(module: nn.Module) -> None:
    """Removes the hooks of a converted network from a module of it, or from one that replaced it."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, partial) and isinstance(getattr(hook.func, "__self__", None), NetworkPasses):
            del module._forward_pre_hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def _refuse_other(module: nn.Module) -> None:
    """Refuses a configuration that is not the conversion's, with which a module would go round its site."""
    config = getattr(module, "config", None)
    name = getattr(config, CONFIGURED, IMPLEMENTATION)
    if name != IMPLEMENTATION:
        raise RuntimeError(
            f"{type(module).__name__}: expected the configuration that convert gave it, with the attention "
            f"implementation {IMPLEMENTATION!r}, got one with {name!r}, which has no attention sites; change the "
            "configuration of the network itself, net.config, or call probattn.models.revert(net), change it and "
            "convert the network again"
        )


def _is_watched(host: nn.Module, hosted: HostedSite) -> bool:
    """Whether a module's weights may be looked at or replaced, or training without a driver must be refused."""
    recorded = bool(vars(host).keys() & host._modules.keys())  # a recorder hides what the module holds
    if recorded or (hosted.training and torch.is_grad_enabled()):
        return True
    if hosted.site is not None and getattr(vars(hosted.site).get("forward"), "is_active", False):
        return True  # its weights are drawn
    return is_replaced(host) or any(map(may_look, host._forward_hooks.values()))


def former_implementation(config: object) -> str | None:
    """A configuration's own attention implementation, in a pass outside a driver of its network; None in others."""
    return None if compiled_pass() is not None else _former_implementation(config)


@torch.compiler.disable(reason="passes are kept by thread")
def _former_implementation(config: object) -> str | None:
    current = _current()
    return current.owner.former(config) if current is not None and current.undriven else None


def note_reached(host: nn.Module, state: object, name: str) -> None:
    """Notes that an attention module has reached its site; in a graph, it ran under this state and name."""
    current, within = _current(), graph_pass()
    if current is not None:
        current.reached.add(host)
    if within is not None:
        within.reached.add((state, name))


def attend_as_before(host: HostCall) -> Attended | None:
    """What the module's own attention function gives, in a pass outside a driver; None in others."""
    name = former_implementation(getattr(host.module, "config", None))
    if name is None:
        return None
    if name == "eager":
        return host.eager()
    return AttentionInterface()[name](
        host.module, host.query, host.key, host.value, host.mask, **host.options
    )
