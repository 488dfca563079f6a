"""The progress bar, drawn on a terminal that is a buffer."""

import io

from rich.console import Console

from probattn.inference.loop import StepTerms
from probattn.inference.progress import TrainingProgress


def drawn(*, terminal: bool, shown: bool = True) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=160, color_system=None)
    with TrainingProgress(total=8, done=2, reduction="mean", shown=shown, console=console) as bar:
        bar.update(3, StepTerms(0.71234, -0.6, 0.11, 1234.5, 0.0), kl_weight=0.25)
    return buffer.getvalue()


def test_loss_likelihood_and_kl_are_shown_apart() -> None:
    text = drawn(terminal=True)
    for words in ("3/8", "loss 0.7123", "log-likelihood -0.6000", "KL 0.1100 (mean, weight 0.25; 1234 nats)"):
        assert words in text


def test_nothing_is_written_where_no_one_looks() -> None:
    assert drawn(terminal=False) == ""
    assert drawn(terminal=True, shown=False) == ""
