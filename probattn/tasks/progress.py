"""Progress on the error stream: a bar for each piece of work, or a line where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from probattn.inference.report import printable

Item = TypeVar("Item")

_BARS: ContextVar[Progress | None] = ContextVar("probattn_progress", default=None)
"""The bars of this context; None where no progress is shown."""


class _TimeLeft(TimeRemainingColumn):
    """The time left, or what it took in the end."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        return text if task.finished or task.total is None else text.append(" left")


@contextmanager
def shown(*, quiet: bool = False, console: Console | None = None) -> Iterator[None]:
    """Shows in this block what :func:`tracked` and :func:`counting` go through; without it they show nothing.

    Args:
        quiet: show nothing here either.
        console: where to; None for the error stream.
    """
    if quiet:
        yield
        return
    console = console or Console(file=sys.stderr)
    bars = Progress(
        MofNCompleteColumn(),
        _TimeLeft(elapsed_when_finished=True),
        BarColumn(bar_width=16),
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, overflow="ellipsis")),
        console=console,
        expand=True,
        redirect_stdout=False,
    )
    token = _BARS.set(bars)
    try:
        yield
    finally:
        _BARS.reset(token)
        if bars.tasks and console.is_terminal:
            bars.stop()


def note(line: str) -> None:
    """Says something about the work, where :func:`shown` shows its progress."""
    bars = _BARS.get()
    if bars is not None:
        bars.console.print(f"note: {printable(line)}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def counting(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Yields what is called after each step of some work.

    Args:
        title: what is being done, for which network and data.
        total: number of steps; None where it is not known.
    """
    bars = _BARS.get()
    if bars is None:
        yield lambda: None
        return
    if not bars.console.is_terminal:
        bars.console.print(f"{printable(title)} ...", markup=False, highlight=False, soft_wrap=True)
        yield lambda: None
        return
    if not bars.tasks:
        bars.start()
    task = bars.add_task(printable(title), total=total)
    yield lambda: bars.advance(task)


def tracked(items: Iterable[Item], title: str, total: int | None = None) -> Iterator[Item]:
    """The items, whose progress is shown where :func:`shown` asks for it.

    Args:
        items: what is gone through.
        title: what is done with them, for which network and data.
        total: their number; None for that of ``items`` where it is known.

    Example:
        >>> list(tracked([1, 2], "an example"))
        [1, 2]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with counting(title, total) as done:
        for item in items:
            yield item
            done()
