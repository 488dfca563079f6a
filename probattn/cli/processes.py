"""Commands under a launcher of several processes: one writes, and none runs ahead of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from accelerate import PartialState

from probattn.inference.report import printable_lines


class Processes:
    """The processes of a launcher (torchrun, accelerate launch), or the single one there usually is.

    Args:
        cpu: whether the run is told to stay on the CPU.

    Example:
        >>> Processes(cpu=True).is_first
        True
    """

    def __init__(self, *, cpu: bool) -> None:
        self._state = PartialState(cpu=cpu) if launched() else None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and talks."""
        return self._state is None or self._state.is_main_process

    def wait(self) -> None:
        """Returns once every process has come here."""
        if self._state is not None:
            self._state.wait_for_everyone()

    @contextmanager
    def first_writes(self) -> Iterator[bool]:
        """Yields whether to write; the others wait before it, until what stood there has been looked at, and after."""
        self.wait()
        yield self.is_first
        self.wait()

    def echo(self, line: str) -> None:
        """Prints a line once."""
        if self.is_first:
            typer.echo(printable_lines(line))


def launched() -> bool:
    """Whether a launcher started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
