"""Whether a module's call is still running, by the frames of its thread.

torch runs the forward hooks of a module after an ``Exception`` and not after ``KeyboardInterrupt`` or ``SystemExit``.
What a pre-hook has left for the time of a call must therefore not be trusted when the call has ended that way.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch.nn.modules import module

HOOKED = module.__file__
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
