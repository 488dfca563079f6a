"""A run's folder: its records, and checkpoints that appear under their names complete, with sums of their files."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout
from pydantic import TypeAdapter
from torch import Tensor

from probattn.checks import shortened
from probattn.files.durable import (
    FULL,
    FileDigest,
    explain_os_error,
    publish_folder,
    sync_folder,
    write_digested,
)
from probattn.files.json_files import read_json
from probattn.files.manifest import DamagedFolderError, Manifest, verify_manifest, write_manifest
from probattn.inference.records import RecordWriter, truncate_records

STATE = "state.json"
RECORDS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"

Resume = bool | Literal["auto"]
Values = Mapping[str, Any]
_NAME = re.compile(r"step-(\d{6,})")
_LIBRARY_CLASS = re.compile(r"probattn(\.\w+)+")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read, or does not belong to this run; the message names it."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint that is incomplete or not what was written."""


class ConfigurationMismatchError(CheckpointError):
    """A checkpoint of another configuration."""


class DiskFullError(CheckpointError):
    """No room for a checkpoint; the ones before it are untouched."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory: values of ``state.json``, ``.pt`` files by name, tensors on the CPU."""

    path: Path
    step: int
    state: dict[str, Any]
    tensors: dict[str, Any]


class CheckpointStore:
    """The ``keep_last`` newest checkpoints of a run, each renamed once complete, which leaves others untouched."""

    def __init__(self, folder: Path, keep_last: int = 2) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last: expected an integer >= 1, got {keep_last}")
        self.folder = folder
        self.keep_last = keep_last

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint."""
        return self.folder / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Steps with a checkpoint folder, complete or not, ascending."""
        if not self.folder.is_dir():
            return []
        names = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir())
        return sorted(int(name[1]) for name in names if name)

    def save(self, step: int, state: Values, tensors: Values, protect: Collection[int] = ()) -> Path:
        """Writes plain JSON values and tensors, then drops steps beyond ``keep_last`` not in ``protect``."""
        plain = {name: plain_values(content, name) for name, content in tensors.items()}
        target = self.path(step)
        temporary = self.folder / f".{target.name}.{os.getpid()}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(temporary, step, state, plain)
            publish_folder(temporary, target)
        except OSError as error:
            raise self._failed(error, target) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune({step, *protect})
        return target

    def load(self, step: int) -> Checkpoint:
        """Verifies and reads one checkpoint; raises :class:`CorruptCheckpointError`."""
        path = self.path(step)
        manifest = verify_checkpoint(path)
        if manifest.step != step:
            raise CorruptCheckpointError(f"checkpoint {path}: expected step {step}, got {manifest.step}")
        state: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        for name in manifest.files:
            try:
                if name == STATE:
                    state = read_json(path / name, TypeAdapter(dict[str, Any]))
                else:
                    tensors[Path(name).stem] = torch.load(path / name, map_location="cpu", weights_only=True)
            except Exception as error:  # torch's unpickler has no errors of its own: they are of every kind
                reason = shortened(str(error), 200)
                raise CorruptCheckpointError(f"checkpoint {path}: {name} is unreadable ({reason})") from error
        return Checkpoint(path, step, state, tensors)

    def remove_leftovers(self) -> None:
        """Removes what killed processes left behind: unfinished writes and deletions. Complete ones are not touched."""
        if self.folder.is_dir():
            for entry in self.folder.glob(".step-*"):
                shutil.rmtree(entry, ignore_errors=True)

    def _prune(self, protect: set[int]) -> None:
        for step in self.steps()[: -self.keep_last]:
            if step not in protect:
                doomed = self.folder / f".{self.path(step).name}.{os.getpid()}.deleted"
                self.path(step).rename(doomed)  # at once; a half-deleted folder would look corrupt
                shutil.rmtree(doomed, ignore_errors=True)

    def _failed(self, error: OSError, target: Path) -> CheckpointError:
        before = [step for step in self.steps() if self.path(step) != target]
        remaining = f"{self.path(before[-1])} is untouched" if before else "there is no earlier one"
        explained = explain_os_error(error, f"writing the checkpoint {target}")
        kind = DiskFullError if error.errno in FULL else CheckpointError
        return kind(f"{explained.strerror} ({remaining})")


def verify_checkpoint(path: Path) -> Manifest:
    """Compares a checkpoint's files with its manifest; raises :class:`CorruptCheckpointError`."""
    try:
        return verify_manifest(path)
    except DamagedFolderError as error:
        raise CorruptCheckpointError(f"checkpoint {path}: {error}") from error


def require_same_configuration(expected: Mapping[str, Any], stored: Mapping[str, Any], path: Path) -> None:
    """Refuses a checkpoint whose configuration ``stored`` differs from this run's, and names every difference."""
    current, previous = flatten(json.loads(json.dumps(expected))), flatten(stored)
    both = current.keys() & previous.keys()
    moved = {key for key in both if _library_class(current[key]) == _library_class(previous[key]) != ""}
    missing = "(absent)"
    differing = [
        f"{key}: checkpoint {previous.get(key, missing)!r}, this run {current.get(key, missing)!r}"
        for key in sorted(current.keys() | previous.keys())
        if current.get(key, missing) != previous.get(key, missing) and key not in moved
    ]
    if differing:
        raise ConfigurationMismatchError(
            f"checkpoint {path} is of another configuration; {'; '.join(differing)}. Use the same options, or another "
            "folder"
        )


def _library_class(value: Any) -> str:
    """The name of a class of this library without its module, which may change between versions."""
    return value.rpartition(".")[2] if isinstance(value, str) and _LIBRARY_CLASS.fullmatch(value) else ""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def plain_values(value: Any, where: str) -> Any:
    """A value with numpy's numbers as Python's; raises :class:`CheckpointError` where a safe load could not read it."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) in (dict, OrderedDict, Counter):
        return type(value)({key: plain_values(item, f"{where}.{key}") for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(plain_values(item, f"{where}[{index}]") for index, item in enumerate(value))
    raise CheckpointError(
        f"{where}: a checkpoint holds tensors, numbers, texts, lists and dicts alone, got {type(value).__name__}; "
        "its owner (model, optimiser or scheduler) cannot be resumed safely"
    )


def _write(folder: Path, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files: dict[str, FileDigest] = {}
    for name, content in tensors.items():
        file = f"{name}.pt"
        files[file] = write_digested(folder / file, partial(torch.save, content))
    text = json.dumps(state, allow_nan=True, indent=1).encode()
    files[STATE] = write_digested(folder / STATE, lambda out: out.write(text))
    write_manifest(folder, files, step=step)
    sync_folder(folder)


class RunStorage:
    """Records and checkpoints of one run, locked while open; a failure of the first process is raised in all."""

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
        """The checkpoint to continue from, None for a run that begins; opens the records where it left them."""
        checkpoint = self._find(resume)
        if checkpoint is not None:
            require_same_configuration(configuration, checkpoint.state["configuration"], checkpoint.path)
            best = checkpoint.state["early_stopping"]["best_step"]
            if best is not None and best != checkpoint.step:
                verify_checkpoint(self.store.path(best))
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

    def save(self, step: int, state: Values, tensors: Values, protect: Collection[int]) -> None:
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

    def _find(self, resume: Resume) -> Checkpoint | None:
        steps = self.store.steps()
        if not resume:
            recorded = self.records_path.exists() and self.records_path.stat().st_size > 0
            if steps or recorded:
                raise FileExistsError(
                    f"{self.folder} holds a run already ({f'checkpoint of step {steps[-1]}' if steps else RECORDS}); "
                    'continue it with resume=True (or "auto"), or choose another folder'
                )
            return None
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
