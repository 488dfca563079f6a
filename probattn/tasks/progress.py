"""Progress on the error stream: a bar for each piece of work, or lines where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from probattn.terminal import LogProgress, printable

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")


class Lines:
    """Lines for each piece of work: what is shown where rich (extra ``cli``) is not installed."""

    def say(self, line: str) -> None:
        """Writes a line."""
        sys.stderr.write(f"{line}\n")

    def begin(self, title: str, total: int | None) -> Callable[[], None]:
        """Begins a piece of work of ``total`` steps; returns what is called after each."""
        self.say(f"{title} ...")
        return LogProgress(title, total, self.say).step

    def close(self) -> None:
        """Nothing is open."""


_SHOWN: ContextVar[Lines | None] = ContextVar("probattn_progress", default=None)
"""What shows the progress of this context; None where none is shown."""


@contextmanager
def shown(*, quiet: bool = False, console: Console | None = None) -> Iterator[None]:
    """Shows on a console, by default the error stream, what :func:`tracked` and :func:`counting` go through."""
    progress = None if quiet else Lines()
    if not quiet and find_spec("rich"):
        from probattn.tasks.bars import Bars

        progress = Bars(console)
    token = _SHOWN.set(progress)
    try:
        yield
    finally:
        _SHOWN.reset(token)
        if progress is not None:
            progress.close()


def note(line: str) -> None:
    """Says something about the work, where :func:`shown` shows its progress."""
    progress = _SHOWN.get()
    if progress is not None:
        progress.say(f"note: {printable(line)}")


@contextmanager
def counting(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Yields what is called after each of ``total`` steps of some work; None where their number is not known."""
    progress = _SHOWN.get()
    yield (lambda: None) if progress is None else progress.begin(printable(title), total)


def tracked(items: Iterable[Item], title: str, total: int | None = None) -> Iterator[Item]:
    """The items, whose progress is shown where :func:`shown` asks for it; ``total`` is by default their number."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with counting(title, total) as done:
        for item in items:
            yield item
            done()
