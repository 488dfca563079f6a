"""Base of the Pyro programs around networks."""

from __future__ import annotations

from typing import Any

from pyro.nn import PyroModule
from pyro.poutine.runtime import am_i_wrapped
from torch import nn


class Program(PyroModule):
    """A network as a Pyro program; outside Pyro's handlers it answers as a plain module does.

    It adds nothing to Pyro's parameter store there, where parameters of two models would share names.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``forward``, within the module's Pyro context where a handler is active."""
        if am_i_wrapped():
            return super().__call__(*args, **kwargs)
        return nn.Module.__call__(self, *args, **kwargs)
