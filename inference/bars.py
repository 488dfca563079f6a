"""The bar of a training, drawn by rich."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _TimeLeft(TimeRemainingColumn):
    """The time left, in words; "done" at the end, also of a training that was complete when it was resumed."""

    def render(self, task: Task) -> Text:
        return Text("done") if task.completed == task.total else super().render(task) + Text(" left")


class TrainingBar(Progress):
    """A bar with words under it, which are wrapped where the terminal is narrow; title, step and time left first.

    Args:
        title: of the bar.
        total: number of steps.
        done: steps done before.
        console: where it is drawn; None for the error stream. Where that is no terminal, nothing is.
    """

    def __init__(self, title: str, *, total: int, done: int, console: Console | None) -> None:
        self._words = ""
        console = Console(stderr=True) if console is None else console
        super().__init__(
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            _TimeLeft(),
            BarColumn(bar_width=None),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.add_task(title, total=total, completed=done)

    def show(self, step: int, words: Callable[[], str]) -> None:
        """Shows a completed step and a text about it, which is not computed where nothing is drawn."""
        if not self.disable:
            self._words = words()
            self.update(self._task, completed=step)

    def stop(self) -> None:
        """Ends the bar."""
        if not self.disable:  # several releases of rich end even a bar never drawn with an empty line
            super().stop()

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, and the words under it."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self._words)
