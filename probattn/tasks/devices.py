"""The device on which networks train and predict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from probattn.tasks.errors import RunError

AUTO = "auto"

_CHOSEN: ContextVar[torch.device | None] = ContextVar("probattn_device", default=None)
"""The device that was asked for; None for an accelerator where there is one."""


def current_device() -> torch.device:
    """The device of networks: the one that :func:`on` names, or else an accelerator, or else the CPU."""
    device = _CHOSEN.get()
    if device is not None:
        return device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


@contextmanager
def on(name: str | None) -> Iterator[None]:
    """Puts networks on a device in this block, by its name; "auto" or None for an accelerator where there is one."""
    token = _CHOSEN.set(checked(name))
    device = _CHOSEN.get()
    try:
        if device is None or device.index is None:
            yield
        else:
            with torch.accelerator.device_index(device.index):  # accelerate takes the current one
                yield
    finally:
        _CHOSEN.reset(token)


def checked(name: str | None) -> torch.device | None:
    """The device of a name; None for "auto", ``RunError`` where the machine has no such device."""
    if name is None or name == AUTO:
        return None
    there = devices()
    if name not in there:
        raise RunError(f"--device: expected a device of this machine ({', '.join(there)}), got {name!r}")
    return torch.device(name)


def devices() -> tuple[str, ...]:
    """Names of this machine's devices; the first of an accelerator's also without its number."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return (AUTO, "cpu")
    numbered = [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
    return (AUTO, "cpu", accelerator.type, *numbered)


def override(name: str | None) -> list[str]:
    """The recipe, trained on the device that :func:`on` names.

    Example:
        >>> override("cuda:1"), override(None)
        (['training.device=auto'], [])
    """
    return [] if name is None else [f"training.device={'cpu' if name == 'cpu' else AUTO}"]
