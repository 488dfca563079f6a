"""What the Pyro handlers around an attention call want of it: a draw, its expectation, or its answer alone."""

from __future__ import annotations

from pyro.poutine import runtime
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_messenger import TraceMessenger

INDIFFERENT = (IndepMessenger, ScaleMessenger, MaskMessenger)
"""Handlers that never look at the value of a site: plates, and factors and masks of log densities."""
EXPECTS = "takes_expectations"
"""Attribute, true of a Pyro handler under which attention takes its expectation, as it does without any."""


def value_handlers() -> list[Messenger]:
    """This thread's handlers that set a site's value or look at it."""
    return [handler for handler in runtime._PYRO_STACK if not isinstance(handler, INDIFFERENT)]


def is_handled() -> bool:
    """Whether a handler wants the sites of a pass. Plates, scales and masks of the program's own want nothing."""
    return bool(value_handlers())


def takes_expectations() -> bool:
    """Whether attention takes its posterior expectation: no handler wants a site, or all of them ask for that."""
    return all(getattr(handler, EXPECTS, False) for handler in value_handlers())


def takes_answers() -> bool:
    """True where a guide takes answers without a value, and no other handler looks for one."""
    handlers = value_handlers()
    return len(handlers) == 1 and bool(getattr(handlers[0], "takes_outputs", False))


def refuse_repeated(name: str) -> None:
    """``ValueError`` where a trace has a site of this name, which layers without a name share."""
    if any(
        isinstance(handler, TraceMessenger) and name in handler.trace.nodes for handler in value_handlers()
    ):
        raise ValueError(
            f"site {name!r}: two layers of one pass have no name of their own; end the network's __init__ with "
            "probattn.link(self), which names all its layers, or give MultiheadAttention(site=...)"
        )
