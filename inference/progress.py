"""Progress of a training: its bar, and observers that look at the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from probattn.inference.session import evaluating, preserved_random_state
from probattn.terminal import LogProgress

if TYPE_CHECKING:
    from rich.console import Console

Observe = Callable[[int, nn.Module], None]
"""Called with the number of updates done and the model."""


class TrainingProgress:
    """A bar on the error stream with words under it; where that is no terminal, or rich is missing, lines of a log."""

    def __init__(
        self,
        *,
        total: int,
        done: int,
        title: str = "training",
        shown: bool = True,
        console: Console | None = None,
    ) -> None:
        self._bar = _bar(console) if shown and find_spec("rich") else None
        self._log: LogProgress | None = None
        if self._bar is not None:
            self._task = self._bar.add_task(title, total=total, completed=done)
        elif shown:
            file = sys.stderr if console is None else console.file
            self._log = LogProgress(title, total, lambda line: print(line, file=file, flush=True), done=done)

    def show(self, step: int, words: Callable[[], str]) -> None:
        """Shows a completed step and a text about it, which is computed only where it is shown."""
        if self._bar is not None:
            self._bar.words = words()
            self._bar.update(self._task, completed=step)
        elif self._log is not None:
            self._log.show(step, words)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(console: Console | None) -> Any:
    """A bar of rich; None where the console is no terminal: several releases end even an idle bar with a line."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class TimeLeft(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            # "done" also of a training that was complete when it was resumed.
            return Text("done") if task.completed == task.total else super().render(task) + Text(" left")

    class Bar(Progress):
        words = ""

        def get_renderables(self) -> Iterable[Any]:
            yield self.make_tasks_table(self.tasks)
            yield Text(self.words)

    console = Console(stderr=True) if console is None else console
    if not console.is_terminal:
        return None
    title = TextColumn("{task.description}", markup=False)
    return Bar(title, MofNCompleteColumn(), TimeLeft(), BarColumn(bar_width=None), console=console)


@dataclass(frozen=True)
class StepObserver:
    """A function that is called with the model after given updates, without influence on the training.

    During the call the model is in evaluation mode without gradients, and the states of random generators are restored
    afterwards. The function must not change the model. With several processes only the first one calls it.

    Args:
        observe: function of the number of completed updates and the model.
        steps: numbers of updates after which the function is called; 0 is before the first update. It is always called
            after the last one. A resumed run calls it again for the steps after its checkpoint.

    Raises:
        ValueError: a step is negative or not an integer.

    Example:
        >>> StepObserver(lambda step, model: print(step), steps=(0, 100)).is_due(100, last=False)
        True
    """

    observe: Observe
    steps: Collection[int] = ()

    def __post_init__(self) -> None:
        wrong = [one for one in self.steps if isinstance(one, bool) or not isinstance(one, int) or one < 0]
        if wrong:
            raise ValueError(f"StepObserver.steps: expected integers >= 0, got {wrong[0]!r}")

    def is_due(self, step: int, *, last: bool) -> bool:
        """True if the function is called after this update."""
        return last or step in self.steps


def observe_step(
    observers: Sequence[StepObserver], step: int, model: nn.Module, device: torch.device, *, last: bool
) -> None:
    """Calls the observers that are due after ``step`` updates; ``last`` marks the end of the training."""
    due = [observer for observer in observers if observer.is_due(step, last=last)]
    if not due:
        return
    with preserved_random_state(device), evaluating(model):
        for observer in due:
            observer.observe(step, model)
