"""Pyro's handlers by thread: what one thread runs leaves the others alone.

Pyro keeps its active handlers and the names of its active plates in lists of the process. A handler of one thread would
answer the attention calls of another, and two threads would take the lists apart in the wrong order. Importing
:mod:`probattn` gives every thread lists of its own. Pyro's parameter store and the modes of modules cannot be kept
apart: they are changed for a while only under :data:`SHARED_STATE`.
"""

from __future__ import annotations

import os
import threading
from collections import UserList
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pyro.poutine import collapse_messenger, messenger, runtime


class SharedState:
    """A lock around state of the process that a thread changes for a while; the thread may enter it again.

    Other threads wait, or are refused with the words ``busy``. In a forked child the thread that forked goes on alone:
    where another thread was in a block, its changes are undone there and the lock is free.
    """

    def __init__(self, busy: str | None = None) -> None:
        self._busy = busy
        self._lock = threading.RLock()
        self._changes: list[ExitStack] = []
        in_child(self._free)

    @contextmanager
    def changed(self) -> Iterator[ExitStack]:
        """A block that changes the state, with the stack of what undoes its changes when it ends."""
        lock = self._lock
        if not lock.acquire(blocking=self._busy is None):
            raise RuntimeError(self._busy)
        try:
            with ExitStack() as changes:
                self._changes.append(changes)
                try:
                    yield changes
                finally:
                    self._changes.remove(changes)
        finally:
            lock.release()

    def _free(self) -> None:
        if self._lock.acquire(blocking=False):  # nobody's, or of the thread that forked
            self._lock.release()
            return
        self._lock, changes, self._changes = threading.RLock(), self._changes, []
        while changes:
            changes.pop().close()


def in_child(action: Callable[[], object]) -> None:
    """Runs ``action`` in every child that is forked from now on."""
    if hasattr(os, "register_at_fork"):  # Windows does not fork
        os.register_at_fork(after_in_child=action)


SHARED_STATE = SharedState()
"""Held while Pyro's parameter store or the modes of modules are other than the process finds them afterwards."""


class ThreadList(threading.local, UserList[Any]):
    """A list of which every thread sees its own, empty at first; a slice is a plain list."""

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.data)


def _thread_list(items: Iterable[Any]) -> ThreadList:
    copied = ThreadList()
    copied.extend(items)
    return copied


def give_threads_their_handlers() -> None:
    """Replaces Pyro's lists; handlers and plates that are active stay so in this thread. Once is enough."""
    if isinstance(runtime._PYRO_STACK, ThreadList):
        return
    handlers = _thread_list(runtime._PYRO_STACK)
    for module in (runtime, messenger, collapse_messenger):
        module._PYRO_STACK = handlers
    runtime._DIM_ALLOCATOR._stack = _thread_list(runtime._DIM_ALLOCATOR._stack)
