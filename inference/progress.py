"""Progress of a training: its bar, and observers that look at the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch
from torch import nn

from probattn.inference.session import evaluating, preserved_random_state

if TYPE_CHECKING:
    from rich.console import Console

    from probattn.inference.bars import TrainingBar

Observe = Callable[[int, nn.Module], None]
"""Called with the number of updates done and the model."""


class TrainingProgress:
    """A bar on the error stream, title, step and time left first.

    Nothing is shown where that is no terminal, and where rich (extra ``cli``) is not installed.
    """

    def __init__(
        self,
        *,
        total: int,
        done: int,
        title: str = "training",
        shown: bool = True,
        console: Console | None = None,
    ) -> None:
        self._bar: TrainingBar | None = None
        if shown and find_spec("rich"):
            from probattn.inference.bars import TrainingBar

            self._bar = TrainingBar(title, total=total, done=done, console=console)

    def show(self, step: int, words: Callable[[], str]) -> None:
        """Shows a completed step and a text about it, which is not computed in silence."""
        if self._bar is not None:
            self._bar.show(step, words)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


@dataclass(frozen=True)
class StepObserver:
    """Something that looks at the model after chosen updates; the training takes the course it would take unseen.

    While it looks, the model is in evaluation mode and without gradients, and random numbers that it draws are not
    missed afterwards. It must change nothing itself. With several processes it looks in the first alone.

    Args:
        observe: called with the number of updates done and the model.
        steps: numbers of updates after which it looks; 0 is before the first. It always looks after the last one.
            A resumed run looks again at what follows the checkpoint it went on from.

    Raises:
        ValueError: a step is negative or no integer.

    Example:
        >>> StepObserver(lambda step, model: print(step), steps=(0, 100)).is_due(100, last=False)
        True
    """

    observe: Observe
    steps: Collection[int] = ()

    def __post_init__(self) -> None:
        wrong = [
            step for step in self.steps if isinstance(step, bool) or not isinstance(step, int) or step < 0
        ]
        if wrong:
            raise ValueError(f"StepObserver.steps: expected integers >= 0, got {wrong[0]!r}")

    def is_due(self, step: int, *, last: bool) -> bool:
        """True if the observer looks at the model after this update."""
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
