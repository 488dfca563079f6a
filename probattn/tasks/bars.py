"""Bars of pieces of work, drawn by rich; lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from probattn.tasks.progress import Lines


class _TimeLeft(TimeRemainingColumn):
    """The time left, or what it took in the end."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        return text if task.finished or task.total is None else text.append(" left")


class Bars(Lines):
    """A bar for each piece of work, on a console; None for the error stream."""

    def __init__(self, console: Console | None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._bars = Progress(
            MofNCompleteColumn(),
            _TimeLeft(elapsed_when_finished=True),
            BarColumn(bar_width=16),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, overflow="ellipsis")),
            console=self._console,
            expand=True,
            redirect_stdout=False,
        )

    def say(self, line: str) -> None:
        """Writes a line, above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str, total: int | None) -> Callable[[], None]:
        """Begins a bar of ``total`` steps; returns what is called after each."""
        if not self._console.is_terminal:
            return super().begin(title, total)
        if not self._bars.tasks:
            self._bars.start()
        task = self._bars.add_task(title, total=total)
        return lambda: self._bars.advance(task)

    def close(self) -> None:
        """Ends the bars."""
        if self._bars.tasks and self._console.is_terminal:
            self._bars.stop()
