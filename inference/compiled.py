"""Networks whose driven passes are graphs of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from probattn.inference.configuration import WHOLE
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.sites.fused import check_compiler


class CompiledNetworks:
    """The networks of transformers within ``model``, each a graph of any sizes while the context lasts.

    Dropout takes its numbers where it takes them uncompiled, so that both have the same results to rounding. Passes
    outside a guide would break a graph at every attention call; they run uncompiled. ``owner`` has the errors.
    """

    def __init__(
        self, owner: str, model: nn.Module, backend: str = "inductor", mode: str | None = None
    ) -> None:
        networks = [] if isinstance(model, ParticleEnsemble) else list(_outermost(model))
        if not networks:
            raise ValueError(
                f"{owner}: expected a model around a network of transformers to compile, got {type(model).__name__}; "
                "leave it out, or compile a network of your own before: net.compile()"
            )
        options: dict[str, Any] = {"backend": backend, "dynamic": True}
        if backend == "inductor":
            check_compiler(owner)
            from torch._inductor import list_mode_options

            options["options"] = {**list_mode_options(mode or "default"), "fallback_random": True}
        elif mode is not None:
            options["mode"] = mode
        self._owner, self._calls = owner, list[tuple[nn.Module, Any]]()
        for net in networks:
            if isinstance(net, PreTrainedModel) and net._compiled_call_impl is None:
                net.compile(**options)
                self._calls.append((net, net._compiled_call_impl))
                net._compiled_call_impl = None

    def __enter__(self) -> None:
        for net, call in self._calls:
            if net.training and _recomputes_sites(net):
                raise ValueError(
                    f"{self._owner}: torch.compile takes no activation checkpointing of layers with attention sites; "
                    "switch one of the two off"
                )
            net._compiled_call_impl = call

    def __exit__(self, *_: object) -> None:
        for net, _call in self._calls:
            net._compiled_call_impl = None


def _recomputes_sites(net: nn.Module) -> bool:
    modules = list(net.modules())
    recomputes = any(getattr(module, "gradient_checkpointing", False) is True for module in modules)
    return recomputes and any(isinstance(module, WHOLE) for module in modules)


def _outermost(module: nn.Module) -> Iterator[Any]:
    """Networks of transformers that are not within others, or the wrappers of ``torch.compile`` that hold them."""
    if isinstance(module, (PreTrainedModel, torch._dynamo.OptimizedModule)):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)
