"""Looking at a model in the midst of its training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from probattn.inference.evaluation_mode import evaluating
from probattn.inference.random_states import preserved_random_state

Observe = Callable[[int, nn.Module], None]
"""Called with the number of updates done and the model."""


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
        """Whether it looks after this update."""
        return last or step in self.steps


def observe_step(
    observers: Sequence[StepObserver], step: int, model: nn.Module, device: torch.device, *, last: bool
) -> None:
    """Lets those look whose turn it is.

    Args:
        observers: all of them.
        step: updates done.
        model: bare.
        device: whose random numbers are kept as they are.
        last: whether the training ends here.
    """
    due = [observer for observer in observers if observer.is_due(step, last=last)]
    if not due:
        return
    with preserved_random_state(device), evaluating(model):
        for observer in due:
            observer.observe(step, model)
