"""What the Pyro programs around networks have in common."""

from __future__ import annotations

from typing import Any

from pyro.nn import PyroModule
from pyro.poutine.runtime import am_i_wrapped
from torch import nn


class Program(PyroModule):
    """A network as a Pyro program; outside Pyro's handlers it answers as a plain module does.

    There it announces nothing and leaves nothing in Pyro's parameter store, where parameters go by name and those
    of two models would meet.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``forward``, within the module's Pyro context where a handler is active."""
        if am_i_wrapped():
            return super().__call__(*args, **kwargs)
        return nn.Module.__call__(self, *args, **kwargs)
