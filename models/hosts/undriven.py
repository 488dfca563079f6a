"""Passes that nobody drives: the network attends with the attention function that it had before conversion."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.jit._trace import is_tracing
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel

from probattn.models.hosts.bridges import is_bridge
from probattn.models.hosts.eager import Attended, HostCall
from probattn.sites import AttentionSite
from probattn.sites.handlers import takes_expectations
from probattn.sites.hooks import may_look
from probattn.sites.threads import in_child
from probattn.sites.traced import compiled_pass

CONFIGURED = "_attn_implementation_internal"
"""Where a configuration has the name of its attention implementation."""
OWN_FUNCTIONS = ("eager", "sdpa", "flex_attention")
"""Implementations that attend alike under another name; flash attention reads the name from the configuration."""


class Hosted(Protocol):
    """What a converted attention module holds."""

    site: AttentionSite | None
    training: bool


@dataclass
class _Pass:
    """One forward pass of the network in one thread: how many of its parts are inside, and whether none is driven."""

    owner: UndrivenPasses
    undriven: bool
    depth: int = 0


_PASSES: dict[int, list[_Pass]] = {}
"""By thread, of the converted networks that run in it, one inside another."""


def _forget_other_threads() -> None:
    """In a forked child, where a new thread may have the number of one that was lost."""
    for thread in _PASSES.keys() - {threading.get_ident()}:
        del _PASSES[thread]


in_child(_forget_other_threads)


class UndrivenPasses:
    """Tells, once in a forward pass, whether anything wants its attention weights, by hooks on all parts of a network.

    With sigma 0 the posterior expectation is the network's own softmax. A pass without a Pyro handler, a sampler, a
    request for attention weights or a hook that may look at them therefore runs the function and the masks that the
    network had, which makes it equal to the unconverted network bit for bit.

    Args:
        former: configurations with the names of the implementations that they had.
        hosts: the attention modules that hold a site, a factor or a penalty, with what holds them.
    """

    is_active: ClassVar[bool] = False
    """Its hooks look at no tensors."""

    def __init__(self, former: list[tuple[Any, str]], hosts: list[tuple[nn.Module, Hosted]]) -> None:
        self._former = former
        self._hosts = hosts

    @classmethod
    def hooks(
        cls, net: PreTrainedModel, before: Sequence[tuple[Any, str, Any]], hosted: Mapping[str, Hosted]
    ) -> list[RemovableHandle]:
        """Hooks all parts of a network that :func:`~probattn.models.convert` has switched; none where it may not be."""
        former = [(config, name) for config, attribute, name in before if attribute == CONFIGURED]
        sites = [each.site for each in hosted.values() if each.site is not None]
        if (
            not hosted
            or any(name not in OWN_FUNCTIONS for _, name in former)
            or any(site.method.learns_scale for site in sites)
            or any(is_bridge(module) for module in net.modules())
        ):
            return []
        passes = cls(former, [(net.get_submodule(name), each) for name, each in hosted.items()])
        handles = []
        for module in net.modules():
            if isinstance(module, PreTrainedModel):
                handles.append(module.register_forward_pre_hook(passes.enter, with_kwargs=True))
                handles.append(module.register_forward_hook(passes.leave, always_call=True))
        return handles

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A forward pre-hook; that of the outermost part decides."""
        if compiled_pass() is None:
            self._enter(module, kwargs)

    @torch.compiler.disable(reason="passes are kept by thread")
    def _enter(self, module: nn.Module, kwargs: Mapping[str, Any]) -> None:
        passes = _PASSES.setdefault(threading.get_ident(), [])
        if not passes or passes[-1].owner is not self:
            passes.append(_Pass(self, self._is_undriven(module, kwargs)))
        passes[-1].depth += 1

    def leave(self, *_: object) -> None:
        """A forward hook that runs after errors too."""
        if compiled_pass() is None:
            self._leave()

    @torch.compiler.disable(reason="passes are kept by thread")
    def _leave(self) -> None:
        passes = _PASSES.get(threading.get_ident())
        if passes and passes[-1].owner is self:
            passes[-1].depth -= 1
            if not passes[-1].depth:
                passes.pop()
        if not passes:
            _PASSES.pop(threading.get_ident(), None)

    def former(self, config: object) -> str | None:
        """The implementation that a configuration had."""
        return next((name for own, name in self._former if own is config), None)

    def _is_undriven(self, module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
        if not takes_expectations() or torch.compiler.is_exporting() or is_tracing():
            return False
        asked = kwargs.get("output_attentions")
        if asked or (asked is None and getattr(module.config, "output_attentions", False)):
            return False
        return not any(_is_watched(host, hosted) for host, hosted in self._hosts)


def _is_watched(host: nn.Module, hosted: Hosted) -> bool:
    """Whether a module's weights may be looked at or replaced, or training without a driver must be refused."""
    recorded = bool(vars(host).keys() & host._modules.keys())  # a recorder hides what the module holds
    if recorded or (hosted.training and torch.is_grad_enabled()):
        return True
    hooks = [*host._forward_hooks.values(), *(hosted.site._forward_pre_hooks.values() if hosted.site else ())]
    forward = vars(host).get(
        "forward"
    )  # earlier releases of transformers put a module's own back in this place
    replaced = forward is not None and getattr(forward, "__func__", None) is not type(host).forward
    return replaced or any(map(may_look, hooks))


def former_implementation(config: object) -> str | None:
    """A configuration's own attention implementation, in a pass outside a driver of its network; None in others."""
    return None if compiled_pass() is not None else _former_implementation(config)


@torch.compiler.disable(reason="passes are kept by thread")
def _former_implementation(config: object) -> str | None:
    passes = _PASSES.get(threading.get_ident())
    return passes[-1].owner.former(config) if passes and passes[-1].undriven else None


def attend_as_before(host: HostCall) -> Attended | None:
    """What the module's own attention function gives, in a pass outside a driver; None in others."""
    name = former_implementation(getattr(host.module, "config", None))
    if name is None:
        return None
    if name == "eager":
        return host.eager()
    attended: Attended = AttentionInterface()[name](
        host.module, host.query, host.key, host.value, host.mask, **host.options
    )
    return attended
