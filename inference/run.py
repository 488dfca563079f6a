"""The one training loop: updates, records, evaluations, checkpoints and interruptions, in their order."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from probattn.inference.checkpoint import Resume, RunStorage, flatten
from probattn.inference.options import RunOptions, StoppingState
from probattn.inference.progress import TrainingProgress, observe_step
from probattn.inference.records import Record

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class FitResult:
    """Result of a run.

    Attributes:
        step: number of completed updates.
        total_steps: number of updates that were requested.
        stopped_early: whether early stopping ended the run.
        best: value of early stopping's metric at the best evaluation; None without early stopping.
        best_step: number of the update with this evaluation; the model has the weights of that update.
        seconds: duration of the run, including the parts before it was resumed.
        train: the last training record, the content of a line of ``metrics.jsonl``.
        validation: the last validation record.
        folder: folder of the run; None if nothing is saved.
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


class Training(ABC):
    """The training that a :class:`Run` performs: start, updates, records and state; ``total`` counts its updates."""

    def __init__(self, model: nn.Module, total: int, steps_per_epoch: int) -> None:
        self.model, self.total, self.steps_per_epoch = model, total, steps_per_epoch
        self.last: dict[str, Record] = {}
        """The last record of each kind."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """Settings that a resumed run must share, besides its fingerprint."""

    def begin(self, step: int) -> None:
        """Prepares the update that follows ``step`` completed ones."""
        self.model.train()

    @abstractmethod
    def update(self, step: int, rescue: Callable[[], Path | None]) -> None:
        """Makes the update after ``step`` completed ones; ``rescue`` saves a state before it that is whole."""

    @abstractmethod
    def words(self) -> str:
        """Text of a progress bar about the last update."""

    @abstractmethod
    def records(self, step: int, *, last: bool, seconds: float) -> Iterator[Record]:
        """Records that are due after ``step`` updates, each measured on demand."""

    def weights(self) -> dict[str, Mapping[str, Tensor]]:
        """The weights by the name of their part of a checkpoint."""
        return {"model": self.model.state_dict()}

    @abstractmethod
    def state(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plain values and parts of a checkpoint after ``step`` updates."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state` returned."""

    def load_weights(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over the weights among ``tensors``."""
        self.model.load_state_dict(tensors["model"])

    def finish(self) -> None:
        """Leaves the model ready for use."""
        self.model.eval()


class Run:
    """One fit, made inside an accelerator session; :meth:`train` may be called once."""

    def __init__(self, options: RunOptions, accelerator: Accelerator, training: Training) -> None:
        self._options, self._accelerator, self._training = options, accelerator, training
        self._storage: RunStorage | None = None
        if options.folder is not None:
            self._storage = RunStorage(Path(options.folder), options.keep_last, accelerator)
        self._configuration = training.configuration() | {"fingerprint": dict(options.fingerprint)}
        self._stopping = StoppingState()
        self._step = 0
        self._best_weights: dict[str, Any] | None = None
        self._earlier_seconds, self._started = 0.0, time.monotonic()

    def train(self, resume: Resume) -> FitResult:
        """Trains to the end; a signal raises ``KeyboardInterrupt`` after the update under way, which is saved."""
        checkpoint = None if self._storage is None else self._storage.open(resume, self._configuration)
        try:
            if checkpoint is not None:
                self._training.load_state(checkpoint.state, checkpoint.tensors)
                self._step = checkpoint.step
                self._earlier_seconds = checkpoint.state["seconds"]
                self._stopping = StoppingState(**checkpoint.state["early_stopping"])
            if self._options.trackers:
                flat = flatten(self._configuration)
                plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in flat.items()}
                self._accelerator.init_trackers("probattn", config=plain)
            self._training.begin(self._step)
            if checkpoint is None:
                self._report()
                self._observe()
            shown = self._options.progress and self._accelerator.is_main_process
            total, title = self._training.total, self._options.title
            bar = TrainingProgress(total=total, done=self._step, title=title, shown=shown)
            with bar as progress, Interruption() as interruption:
                self._update_until_the_end(progress, interruption)
        finally:
            if self._storage is not None:
                self._storage.close()
        return self._result()

    def _update_until_the_end(self, progress: TrainingProgress, interruption: Interruption) -> None:
        interrupted = 0
        while not (interrupted or self._finished()):
            self._training.update(self._step, self._rescue)
            self._step += 1
            progress.show(self._step, self._training.words)
            self._after_update()
            interrupted = self._interrupted(interruption)
        if self._finished():
            self._restore_best()
        if interrupted:
            checkpoint = self._rescue()
            raise TrainingInterrupted(
                f"training was interrupted after update {self._step} of {self._training.total}; "
                + (f"checkpoint: {checkpoint}" if checkpoint else "without a folder there is no checkpoint"),
                interrupted,
            )

    def _after_update(self) -> None:
        improved = self._report()
        self._observe()
        if self._storage is None:
            if improved:
                self._best_weights = self._weights()
        else:
            every = self._options.checkpoint_every or self._training.steps_per_epoch
            if improved or self._finished() or self._step % every == 0:
                self._save()

    def _report(self) -> bool:
        """Publishes what is due; whether early stopping's metric is the best so far."""
        rule, improved = self._options.early_stopping, False
        last = self._step == self._training.total
        for record in self._training.records(self._step, last=last, seconds=self._seconds()):
            self._publish(record)
            if rule is not None and record["kind"] == "validation":
                improved = self._stopping.update(rule, rule.values(record), self._step)
        return improved

    def _publish(self, record: Record) -> None:
        self._training.last[record["kind"]] = record
        if self._storage is not None:
            self._storage.append(record)
        if self._accelerator.trackers:
            flat = {f"{record['kind']}/{k}": v for k, v in flatten(record).items() if k != "step"}
            numbers = {name: value for name, value in flat.items() if isinstance(value, (int, float))}
            self._accelerator.log(numbers, step=record["step"])
        if self._accelerator.is_main_process:
            for callback in self._options.callbacks:
                callback(record, self._training.model)

    def _observe(self) -> None:
        if self._accelerator.is_main_process:
            device, last = self._accelerator.device, self._step > 0 and self._finished()
            observe_step(self._options.observers, self._step, self._training.model, device, last=last)

    def _finished(self) -> bool:
        return self._step >= self._training.total or self._stopped_early()

    def _stopped_early(self) -> bool:
        rule = self._options.early_stopping
        return rule is not None and self._stopping.exhausted(rule)

    def _interrupted(self, interruption: Interruption) -> int:
        """The signal that reached any of the processes, which all end after the same update; 0 for none."""
        if self._accelerator.num_processes == 1:
            return interruption.came
        mine = torch.tensor(interruption.came, device=self._accelerator.device)
        return int(self._accelerator.gather(mine).max())

    def _restore_best(self) -> None:
        """Leaves the model with the weights to keep, ready for use."""
        best = self._stopping.best_step
        if best is not None and best != self._step:
            weights = self._best_weights if self._storage is None else self._storage.store.load(best).tensors
            assert weights is not None
            self._training.load_weights(weights)
        self._training.finish()

    def _rescue(self) -> Path | None:
        """Makes sure that there is a checkpoint of this step; the newest one."""
        if self._storage is None:
            return None
        if self._step > (self._storage.latest_step or 0):
            self._save()
        return self._storage.latest

    def _save(self) -> None:
        assert self._storage is not None
        plain, tensors = self._training.state(self._step)
        state = {"step": self._step, **plain, "seconds": self._seconds()}
        state |= {"early_stopping": asdict(self._stopping), "configuration": self._configuration}
        best = self._stopping.best_step
        self._storage.save(self._step, state, tensors, protect=() if best is None else (best,))

    def _weights(self) -> dict[str, Any]:
        """A copy of the weights, on the CPU, that later updates leave alone."""
        states = self._training.weights()
        return {n: {k: v.detach().to("cpu", copy=True) for k, v in s.items()} for n, s in states.items()}

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started

    def _result(self) -> FitResult:
        return FitResult(
            step=self._step,
            total_steps=self._training.total,
            stopped_early=self._stopped_early() and self._step < self._training.total,
            best=self._stopping.best,
            best_step=self._stopping.best_step,
            seconds=self._seconds(),
            train=self._training.last.get("train"),
            validation=self._training.last.get("validation"),
            folder=None if self._storage is None else self._storage.folder,
        )


class TrainingInterrupted(KeyboardInterrupt):
    """A signal, of this number, ended a training after a whole update."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Interruption:
    """Lets SIGINT and SIGTERM wait for an update's end, in the main thread; a second one does not wait."""

    def __init__(self) -> None:
        self.came = 0
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                former = signal.getsignal(number)
                if former not in (None, signal.SIG_IGN):
                    self._former[number] = former
                    signal.signal(number, self._request_stop)
        return self

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self.came = number
        self._restore()

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former.clear()
