"""The progress bar, drawn on a terminal that is a buffer."""

import io
import re

import pytest
from rich.console import Console

from probattn.inference.progress import TrainingProgress

WORDS = "loss 0.7123  log-likelihood -0.6  KL 0.11 (mean, weight 0.001; 1.23e+04 nats)"


def drawn(*, terminal: bool, shown: bool = True, width: int = 80, title: str = "baseline 1/2") -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=width, color_system=None)
    with TrainingProgress(total=8, done=2, title=title, shown=shown, console=console) as bar:
        bar.show(3, lambda: WORDS)
    return buffer.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_title_step_and_time_left_come_first_and_nothing_is_cut(width: int) -> None:
    lines = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", drawn(terminal=True, width=width)).split("\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in lines]
    last = max(index for index, line in enumerate(lines) if "/8" in line)
    assert re.match(r"baseline 1/2 3/8 \S+ left ━+", lines[last])
    assert " ".join(lines[last + 1 :]).split() == WORDS.split()
    assert all(len(line) <= width for line in lines)


def test_nothing_is_written_where_no_one_looks() -> None:
    assert drawn(terminal=False) == ""
    assert drawn(terminal=True, shown=False) == ""
