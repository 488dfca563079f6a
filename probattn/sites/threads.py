"""Pyro's handlers by thread: what one thread runs leaves the others alone.

Pyro keeps its active handlers and the names of its active plates in lists of the process. A handler of one thread would
answer the attention calls of another, and two threads would take the lists apart in the wrong order. Importing
:mod:`probattn` gives every thread lists of its own. Pyro's parameter store and the modes of modules cannot be kept
apart: they are changed for a while only under :data:`SHARED_STATE`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any

from pyro.poutine import collapse_messenger, messenger, runtime

SHARED_STATE = threading.RLock()
"""Held while Pyro's parameter store or the modes of modules are other than the process finds them afterwards."""


class ThreadList(threading.local, MutableSequence[Any]):
    """A list of which every thread sees its own, empty at first."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._items)

    def insert(self, index: int, value: Any) -> None:
        """As a list's."""
        self._items.insert(index, value)


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
