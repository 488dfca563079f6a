"""The progress bar: loss, log-likelihood and KL apart."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from probattn.inference.loop import StepTerms


class TrainingProgress:
    """A bar on the error stream; nothing is shown where that is no terminal.

    Args:
        total: steps of the run.
        done: steps done before.
        reduction: how the KL is reduced, shown beside it.
        shown: False for silence.
        console: where to draw; the error stream by default.

    Example:
        >>> with TrainingProgress(total=2, done=0, reduction="mean", shown=False) as bar:
        ...     bar.update(1, StepTerms(0.7, -0.6, 0.1, 12.0, 0.0), kl_weight=0.5)
    """

    def __init__(
        self, *, total: int, done: int, reduction: str, shown: bool = True, console: Console | None = None
    ) -> None:
        console = Console(stderr=True) if console is None else console
        self._reduction = reduction
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[terms]}", markup=False),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._bar.add_task("training", total=total, completed=done, terms="")

    def update(self, step: int, terms: StepTerms, kl_weight: float) -> None:
        """Shows a completed step."""
        text = (
            f"loss {terms.loss:.4f}  log-likelihood {terms.log_likelihood:.4f}  "
            f"KL {terms.kl:.4f} ({self._reduction}, weight {kl_weight:.2f}; {terms.kl_nats:.4g} nats)"
        )
        self.show(step, text)

    def show(self, step: int, words: str) -> None:
        """Shows a completed step with words of one's own."""
        self._bar.update(self._task, completed=step, terms=words)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (
            not self._bar.disable
        ):  # several releases of rich end even a bar that was never drawn with an empty line
            self._bar.stop()
