"""What a fit returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from probattn.inference.records import Record


@dataclass(frozen=True)
class FitResult:
    """What came out of a run.

    Attributes:
        step: completed updates.
        total_steps: updates that were asked for.
        stopped_early: whether early stopping ended it.
        best: best value of early stopping's metric, None without early stopping.
        best_step: the update it was seen at; the model holds its weights.
        seconds: time spent, over all sessions of a resumed run.
        train: the last training record.
        validation: the last validation record.
        folder: of the run.
    """

    step: int
    total_steps: int
    stopped_early: bool
    best: float | None
    best_step: int | None
    seconds: float
    train: Record | None
    validation: Record | None
    folder: Path | None
