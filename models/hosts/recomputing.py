"""Activation checkpointing of a host: its layers run again under the handlers and in the state of their first run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from torch import nn

from probattn.sites.handlers import Contexts, checkpoint_contexts, is_handled

FUNCTION = "_gradient_checkpointing_func"
"""Attribute under which transformers keeps the function that checkpoints."""


class _State(Protocol):
    def remember(self) -> Callable[[], AbstractContextManager[None]]: ...


class HostContexts:
    """``context_fn`` of a host's checkpoints: handlers, and the states of the stacks that the module belongs to."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self) -> Contexts:
        """The contexts of the first and the second run."""
        states: dict[int, _State] = {}
        for module in self._module.modules():
            state: Any = getattr(module, "state", None)
            if hasattr(state, "remember"):
                states[id(state)] = state
        return checkpoint_contexts(*(state.remember() for state in states.values()))


def prepare_recomputing(owner: nn.Module) -> None:
    """Gives the checkpoints of a network in training the contexts in which its sites can run again.

    Raises:
        RuntimeError: checkpoints that are reentrant or do not restore the generators, or a pass without a driver.
    """
    for module in owner.modules():
        if getattr(module, "gradient_checkpointing", False) is True and module.training:
            function: Any = getattr(module, FUNCTION, None)
            _refuse(type(owner).__name__, function)
            if not _is_prepared(function):
                setattr(module, FUNCTION, partial(function, context_fn=HostContexts(module)))


def forget_recomputing(module: nn.Module) -> None:
    """Gives a module the function back that :func:`prepare_recomputing` replaced."""
    function: Any = vars(module).get(FUNCTION)
    if _is_prepared(function):
        options = {name: value for name, value in function.keywords.items() if name != "context_fn"}
        setattr(module, FUNCTION, partial(function.func, *function.args, **options))


def _is_prepared(function: Any) -> bool:
    return isinstance(function, partial) and isinstance(function.keywords.get("context_fn"), HostContexts)


def _refuse(name: str, function: Any) -> None:
    options = function.keywords if isinstance(function, partial) else {}
    if options.get("use_reentrant") is not False:
        raise RuntimeError(
            f"{name}: reentrant activation checkpointing runs layers without gradients first, so that the KL of their "
            'sites has none; call activation_checkpointing_enable({"use_reentrant": False}), in older versions of '
            "transformers gradient_checkpointing_enable"
        )
    if options.get("preserve_rng_state", True) is not True:
        raise RuntimeError(
            f"{name}: activation checkpointing with preserve_rng_state=False draws other attention weights in the "
            "backward pass; leave it True"
        )
    if "context_fn" in options and not _is_prepared(function):
        raise RuntimeError(
            f"{name}: activation checkpointing with a context_fn of its own leaves no place for that of the attention "
            "sites; leave it out"
        )
    if not is_handled():
        raise RuntimeError(
            f"{name}: activation checkpointing runs layers again in the backward pass, under the handlers of the first "
            "run, and there are none: training without a driver; train with probattn.inference.SVIDriver or under "
            "AttentionGuide, or call activation_checkpointing_disable(), in older versions of transformers "
            "gradient_checkpointing_disable()"
        )
