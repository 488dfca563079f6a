"""A run's folder, shared by its processes: records and checkpoints, written by the first, read by all."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout

from probattn.inference.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    CorruptCheckpointError,
    require_same_configuration,
    verify_checkpoint,
)
from probattn.inference.records import RecordWriter, truncate_records

RECORDS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"

Resume = bool | Literal["auto"]


class RunStorage:
    """``folder/metrics.jsonl`` and ``folder/checkpoints/`` of one run, which several processes must see alike.

    A failure of the first process to write is raised in all. While it is open a lock keeps other programs out.
    """

    def __init__(self, folder: Path, keep_last: int, accelerator: Accelerator) -> None:
        self.folder = folder
        self.store = CheckpointStore(folder / CHECKPOINTS, keep_last)
        self.latest: Path | None = None
        self.latest_step: int | None = None
        self._accelerator = accelerator
        self._writer: RecordWriter | None = None
        self._lock = FileLock(folder / LOCK, timeout=0)

    @property
    def records_path(self) -> Path:
        """The file of the records."""
        return self.folder / RECORDS

    def open(self, resume: Resume, configuration: Mapping[str, Any]) -> Checkpoint | None:
        """Finds the checkpoint to continue from, None for a run that begins, and opens the records where it left them.

        Raises :class:`CheckpointError` or, where a run or another program is in the folder, ``FileExistsError``.
        """
        if not resume:
            self._require_unused()
        checkpoint = self._find(resume)
        if checkpoint is not None:
            require_same_configuration(configuration, checkpoint.state["configuration"], checkpoint.path)
            self._require_best(checkpoint)
            self.latest, self.latest_step = checkpoint.path, checkpoint.step
        self._accelerator.wait_for_everyone()
        self._acquire_lock()
        if self._accelerator.is_main_process:
            self.store.remove_leftovers()
            truncate_records(self.records_path, -1 if checkpoint is None else checkpoint.step)
            self._writer = RecordWriter(self.records_path)
        self._accelerator.wait_for_everyone()
        return checkpoint

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record, in the first process."""
        if self._writer is not None:
            self._writer.append(record)

    def save(
        self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any], protect: Collection[int]
    ) -> None:
        """Writes a checkpoint, in the first process, once the records are on the disk; if it cannot, all raise."""
        failure: CheckpointError | OSError | None = None
        if self._writer is not None:
            try:
                self._writer.sync()
                self.store.save(step, state, tensors, protect)
            except (CheckpointError, OSError) as error:
                failure = error
        if self._accelerator.num_processes > 1:
            message = broadcast_object_list([None if failure is None else str(failure)])[0]
            if failure is None and message is not None:
                failure = CheckpointError(f"the first process failed: {message}")
        if failure is not None:
            raise failure
        self.latest, self.latest_step = self.store.path(step), step

    def close(self) -> None:
        """Closes the records and gives the folder free."""
        try:
            with self._writer or nullcontext():
                self._writer = None
        finally:
            self._lock.release()

    def _acquire_lock(self) -> None:
        """Keeps other programs from writing the same run; the system lets go of it when the process dies."""
        free = True
        if self._accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire()
            except Timeout:
                free = False
        if self._accelerator.num_processes > 1:
            free = broadcast_object_list([free])[0]
        if not free:
            raise FileExistsError(
                f"{self.folder}: another program is writing this run; wait for its end, or choose another folder"
            )

    def _require_unused(self) -> None:
        steps = self.store.steps()
        recorded = self.records_path.exists() and self.records_path.stat().st_size > 0
        if steps or recorded:
            raise FileExistsError(
                f"{self.folder} holds a run already ({f'checkpoint of step {steps[-1]}' if steps else RECORDS}); "
                'continue it with resume=True (or "auto"), or choose another folder'
            )

    def _find(self, resume: Resume) -> Checkpoint | None:
        if not resume:
            return None
        steps = self.store.steps()
        if not steps:
            if resume == "auto":
                return None
            raise CheckpointError(f"{self.store.folder}: there is no checkpoint to resume from")
        failures: list[CorruptCheckpointError] = []
        for step in reversed(steps):
            try:
                checkpoint = self.store.load(step)
            except CorruptCheckpointError as error:
                if resume != "auto":
                    raise CorruptCheckpointError(
                        f'{error}; resume="auto" would fall back to the one before, if there is one'
                    ) from error
                failures.append(error)
            else:
                for failure in failures:
                    warnings.warn(f"{failure}; falling back to {checkpoint.path}", stacklevel=2)
                return checkpoint
        raise failures[0]

    def _require_best(self, checkpoint: Checkpoint) -> None:
        best = checkpoint.state["early_stopping"]["best_step"]
        if best is not None and best != checkpoint.step:
            verify_checkpoint(self.store.path(best))
