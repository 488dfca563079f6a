"""Training of many small models at once, which are stacked in one module and have losses of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from probattn.checks import check_integer, check_number
from probattn.inference.checkpoint import Checkpoint
from probattn.inference.loop import accelerator_session
from probattn.inference.meter import NonFiniteError
from probattn.inference.progress import TrainingProgress
from probattn.inference.records import Record
from probattn.inference.result import FitResult
from probattn.inference.storage import Resume, RunStorage

OWNER = "ManyRunsDriver"


class ManyRuns(Protocol):
    """A module whose parameters have a leading axis of runs; no run sees another's."""

    def losses(self, batch: Any) -> Tensor:
        """The loss of every run, ``[R]``."""


Evaluation = Callable[[int, torch.device], Mapping[str, Tensor]]
"""Called with the step and the device; gives each measure's values of all runs, ``[R]``."""


@dataclass(eq=False)
class ManyRunsDriver:
    r"""Trains R models that are stacked in one module, each as if it were alone.

    Minimises the sum of their losses with Adam: no run sees another's parameters and Adam works entry by entry, so that
    the updates of each are those it would have by itself. There is neither clipping nor weight decay, which would tie
    runs together.

    A batch depends on its step alone, so that a run that was killed and resumed repeats the uninterrupted one, on a CPU
    bit for bit.

    Args:
        model: an ``nn.Module`` with ``losses(batch)``, trained in place.
        batches: from a step (1, 2, ...) to its batch, for all runs.
        steps: updates, >= 1.
        evaluate: what is measured; none by default.
        evaluate_at: steps at which it is measured, 0 for the initial values.
        parameters: those that learn; by default all that require gradients.
        learning_rate: of Adam, > 0.
        checkpoint_every: updates between checkpoints, >= 1; the last update always has one.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` go; None keeps nothing on disk.
        fingerprint: plain values that a resumed run must match.
        cpu: stay on the CPU where there is a GPU.
        progress: whether to show a bar.

    Raises:
        ValueError: an option out of its range.

    Example:
        >>> class Means(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.mean = nn.Parameter(torch.zeros(3))
        ...     def losses(self, batch):
        ...         return (self.mean - batch).square()
        >>> model = Means()
        >>> target = torch.tensor([1.0, 2.0, 3.0])
        >>> driver = ManyRunsDriver(model, lambda step: target, 300, learning_rate=0.1, cpu=True, progress=False)
        >>> driver.fit().step
        300
        >>> torch.allclose(model.mean, target, atol=1e-3)
        True
    """

    model: nn.Module
    batches: Callable[[int], Any]
    steps: int
    _: KW_ONLY
    evaluate: Evaluation | None = None
    evaluate_at: Sequence[int] = ()
    parameters: Sequence[nn.Parameter] | None = None
    learning_rate: float = 1e-3
    checkpoint_every: int = 50
    folder: Path | str | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    cpu: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        check_integer(OWNER, "steps", self.steps, least=1)
        check_integer(OWNER, "checkpoint_every", self.checkpoint_every, least=1)
        check_number(OWNER, "learning_rate", self.learning_rate, positive=True)
        outside = [step for step in self.evaluate_at if not 0 <= step <= self.steps]
        if outside:
            raise ValueError(f"{OWNER}.evaluate_at: expected steps from 0 to {self.steps}, got {outside[0]}")

    def fit(self, *, resume: Resume = False) -> FitResult:
        """Trains to the last step.

        Args:
            resume: as for :meth:`probattn.inference.SVIDriver.fit`.

        Returns:
            What came out; ``validation`` is the last evaluation.

        Raises:
            CheckpointError: nothing to resume, or a checkpoint that is corrupt, of another configuration or cannot be
                written.
            FileExistsError: the folder holds a run and ``resume`` is False.
            NonFiniteError: a loss is not finite; the message says whose.
            ValueError: started as one of several processes.
        """
        with accelerator_session(precision="no", cpu=self.cpu) as accelerator:
            if accelerator.num_processes > 1:
                raise ValueError(f"{OWNER}: expected one process, got {accelerator.num_processes}")
            return _Fit(self, accelerator).run(resume)

    def configuration(self) -> dict[str, Any]:
        """What a resumed run must share; ``steps`` is not among it, since Adam's updates do not depend on it."""
        shapes = {name: list(value.shape) for name, value in self.model.named_parameters()}
        return {
            "learning_rate": self.learning_rate,
            "evaluate_at": list(self.evaluate_at),
            "parameters": shapes,
            "fingerprint": dict(self.fingerprint),
        }


class _Fit:
    """One fit inside an accelerator session."""

    def __init__(self, driver: ManyRunsDriver, accelerator: Accelerator) -> None:
        self._driver, self._device = driver, accelerator.device
        driver.model.to(self._device)
        learning = driver.parameters
        if learning is None:
            learning = [each for each in driver.model.parameters() if each.requires_grad]
        self._optimizer = torch.optim.Adam(learning, lr=driver.learning_rate)
        self._storage = None if driver.folder is None else RunStorage(Path(driver.folder), 1, accelerator)
        self._step = 0
        self._earlier_seconds, self._started = 0.0, time.monotonic()
        self._last: Record | None = None

    def run(self, resume: Resume) -> FitResult:
        driver, storage = self._driver, self._storage
        configuration = driver.configuration()
        checkpoint = None if storage is None else storage.open(resume, configuration)
        try:
            if checkpoint is not None:
                self._restore(checkpoint)
            else:
                self._evaluate()
            with TrainingProgress(
                total=driver.steps, done=self._step, reduction="", shown=driver.progress
            ) as bar:
                while self._step < driver.steps:
                    mean = self._update()
                    bar.show(self._step, f"loss {mean:.4f}")
                    self._evaluate()
                    if storage is not None and self._due():
                        self._save(storage, configuration)
        finally:
            if storage is not None:
                storage.close()
        driver.model.eval()
        return self._result()

    def _update(self) -> float:
        batch = send_to_device(self._driver.batches(self._step + 1), self._device)
        runs: Any = self._driver.model
        losses = runs.losses(batch)
        if not bool(losses.isfinite().all()):
            found = [index for index, finite in enumerate(losses.isfinite().tolist()) if not finite]
            raise NonFiniteError(
                f"step {self._step + 1}: expected finite losses, got {losses[found[0]].item()} in run {found[0]} "
                f"({len(found)} of {len(losses)} runs); lower the learning rate"
            )
        self._optimizer.zero_grad()
        losses.sum().backward()
        self._optimizer.step()
        self._step += 1
        return losses.detach().mean().item()

    def _evaluate(self) -> None:
        driver = self._driver
        if driver.evaluate is None or self._step not in driver.evaluate_at:
            return
        driver.model.eval()
        with torch.no_grad():
            values = driver.evaluate(self._step, self._device)
        driver.model.train()
        measured = {name: value.tolist() for name, value in values.items()}
        self._last = {"kind": "validation", "step": self._step, "seconds": self._seconds(), **measured}
        if self._storage is not None:
            self._storage.append(self._last)

    def _due(self) -> bool:
        return self._step % self._driver.checkpoint_every == 0 or self._step == self._driver.steps

    def _save(self, storage: RunStorage, configuration: Mapping[str, Any]) -> None:
        state = {
            "step": self._step,
            "seconds": self._seconds(),
            "last": self._last,
            "early_stopping": {"best_step": None},
            "configuration": configuration,
        }
        parts = {"model": self._driver.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        storage.save(self._step, state, parts, protect=())

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._driver.model.load_state_dict(checkpoint.parts["model"])
        self._optimizer.load_state_dict(checkpoint.parts["optimizer"])
        self._step = checkpoint.step
        self._earlier_seconds = checkpoint.state["seconds"]
        self._last = checkpoint.state["last"]

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started

    def _result(self) -> FitResult:
        return FitResult(
            step=self._step,
            total_steps=self._driver.steps,
            stopped_early=False,
            best=None,
            best_step=None,
            seconds=self._seconds(),
            train=None,
            validation=self._last,
            folder=None if self._storage is None else self._storage.folder,
        )
