"""Activation checkpointing: the second run of a block, in the backward pass, has the handlers of the first."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any

from pyro.poutine import runtime
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
Resumption = Callable[[], AbstractContextManager[None]]
"""Puts a state back for the time of a block, as often as it is called."""


def checkpoint_contexts(*resumptions: Resumption) -> Contexts:
    """Serves ``torch.utils.checkpoint.checkpoint`` as ``context_fn`` around a block with attention sites.

    A checkpointed block runs again in the backward pass, where no handler of Pyro's is active. With these contexts it
    meets copies of the handlers of its first run, which record elsewhere: its sites are drawn from the same noise
    (torch restores its generators), and nothing is announced a second time. What left the block in the first run, such
    as its sites' KL, has its gradient.

    Args:
        *resumptions: further states that the second run needs as the first one found them.

    Returns:
        The contexts of the first run, which does nothing, and of the second.

    Example:
        >>> import functools, pyro, torch, probattn
        >>> import pyro.distributions as dist
        >>> from torch.utils.checkpoint import checkpoint
        >>> mha = probattn.MultiheadAttention(4, 2, batch_first=True)
        >>> block = functools.partial(checkpoint, mha, use_reentrant=False, context_fn=checkpoint_contexts)
        >>> def model(x):
        ...     with pyro.plate("data", len(x)):
        ...         output, _ = block(x, x, x)
        ...         pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=x)
        >>> from probattn.inference import AttentionELBO, AttentionGuide
        >>> AttentionELBO()(model, AttentionGuide(model))(torch.randn(3, 5, 4)).loss.backward()
    """
    handlers = _copies(runtime._PYRO_STACK)
    places = list(runtime._DIM_ALLOCATOR._stack)

    @contextmanager
    def handled() -> Iterator[None]:
        stacks = (runtime._PYRO_STACK, runtime._DIM_ALLOCATOR._stack)
        former = [list(stack) for stack in stacks]
        stacks[0][:], stacks[1][:] = _copies(handlers), places
        try:
            yield
        finally:
            for stack, items in zip(stacks, former, strict=True):
                stack[:] = items

    return nullcontext(), _Again([handled, *resumptions])


class _Again(AbstractContextManager[None]):
    """States put back together; may be entered again, as torch does for a graph that is retained."""

    def __init__(self, resumptions: Sequence[Resumption]) -> None:
        self._resumptions = resumptions
        self._entered = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for resume in self._resumptions:
                stack.enter_context(resume())
            self._entered = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()


def _copies(handlers: Sequence[Any]) -> list[Any]:
    """Handlers that do what these do and record elsewhere; a guide's source of noise counts on from where it is."""
    copies = [copy.copy(handler) for handler in handlers]
    for handler in copies:
        if isinstance(handler, TraceMessenger):
            handler.trace = Trace(graph_type=handler.graph_type)
        if "noise" in vars(handler):
            handler.noise = copy.deepcopy(handler.noise)
    return copies
