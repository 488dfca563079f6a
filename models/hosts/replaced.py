"""Modules around attention modules, whose forward may be replaced after conversion."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch import nn

from probattn.sites.handlers import refuse_replaced

Code = tuple[str, int]
"""File and first line of a function: a copy and a pickled network have them too."""


class Outer(NamedTuple):
    """A module that runs attention modules: their names, and the code of its forward at conversion."""

    hosts: tuple[str, ...]
    code: Code

    def check(self, network: str, name: str, module: nn.Module, ran: Collection[str]) -> None:
        """Refuses a pass in which the module ran with another forward, and no attention module in it did."""
        if code_of(module) != self.code and not any(host in ran for host in self.hosts):
            refuse_replaced(network, self.hosts[0], name)


def outer_modules(net: nn.Module, hosts: Iterable[str]) -> dict[str, Outer]:
    """The modules within a network that run these attention modules, by name."""
    inside: dict[str, list[str]] = {}
    for host in hosts:
        parts = host.split(".")
        for length in range(1, len(parts)):
            inside.setdefault(".".join(parts[:length]), []).append(host)
    modules = {name: net.get_submodule(name) for name in inside}
    return {
        name: Outer(tuple(inside[name]), code_of(module))
        for name, module in modules.items()
        if not isinstance(module, nn.ModuleList | nn.ModuleDict)  # which are not called
    }


def code_of(module: nn.Module) -> Code:
    """The code of a module's forward."""
    forward = vars(module).get("forward", type(module).forward)
    code = getattr(getattr(forward, "__func__", forward), "__code__", None)
    return (type(forward).__name__, 0) if code is None else (code.co_filename, code.co_firstlineno)
