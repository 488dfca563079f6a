"""Hooks of modules that a pass must respect, and whether the call that ran a pre-hook is still running.

torch runs forward hooks after an ``Exception`` in a forward, but not after a ``KeyboardInterrupt`` or ``SystemExit``:
what a pre-hook began is over when the frame of its call is gone.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

from torch import nn


def may_look(hook: Any) -> bool:
    """Whether a hook may read or draw what passes; those of transformers read it where a pass asks for it."""
    if _is_of_transformers(hook):
        return False
    return bool(getattr(getattr(hook, "__self__", None), "is_active", True))


def reads_weights(module: nn.Module) -> bool:
    """Whether a forward hook, or what replaces a module's ``forward``, may read attention weights in this pass.

    transformers leaves its hooks in place for good; they read maps only where the pass collects them.
    """
    forward = vars(module).get("forward")
    # Earlier releases of transformers leave a module's own method there.
    replaced = forward is not None and getattr(forward, "__func__", None) is not type(module).forward
    return replaced or any(may_look(hook) or _collects_maps(hook) for hook in module._forward_hooks.values())


def _collects_maps(hook: Any) -> bool:
    if not _is_of_transformers(hook):
        return False
    collector = getattr(hook, "__globals__", {}).get("_active_collector")
    collected = {"attentions"} if collector is None else collector.get() or {}
    return any(name.endswith("attentions") for name in collected)


def _is_of_transformers(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith("transformers.")


HOOKED = inspect.getfile(nn.Module)
"""The file of torch whose frames call hooks: one that called a pre-hook lasts until the module's forward has ended."""


def hooked_call() -> FrameType | None:
    """The frame of the module's call in whose pre-hook this runs; None outside a hook."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != HOOKED:
        frame = frame.f_back
    return frame


def is_running(call: FrameType | None) -> bool:
    """Whether a call is one of those that this thread is in; True for None, a state that no call has left."""
    frame: FrameType | None = None if call is None else sys._getframe(1)
    while frame is not call:
        if frame is None:
            return False
        frame = frame.f_back
    return True
