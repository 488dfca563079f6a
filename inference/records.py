"""A run's records: one JSON object a line, flushed as written, cut back to a checkpoint on resume."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from probattn.checks import OneLineError, shown
from probattn.files.durable import explain_os_error, write_atomically
from probattn.files.json_files import JSONError, parse_json

LARGEST = 1e150
"""Numbers beyond it are no measurements: their squares overflow."""

Number = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
"""A number that was measured."""
Figures = dict[str, Number | str | bool | None]


class _Line(BaseModel):
    """Required keys of a line of ``metrics.jsonl``; any other measure is a number, or numbers by name."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[
        str, Number | str | bool | list[Number | None] | Figures | dict[str, Figures] | None
    ]

    kind: str = ""
    step: Annotated[int, Field(ge=0, le=2**53)]
    seconds: Annotated[Number, Field(ge=0)] = 0.0
    sites: dict[str, dict[str, Number | None]] | None = None
    tokens: Number | None = None
    nll: Number | None = None
    correct: Number | None = None


_LINE = TypeAdapter(_Line)

Record = dict[str, Any]
"""One line of ``metrics.jsonl``: ``kind`` ("train" or "validation"), ``step`` and what was measured."""


class RecordsError(OneLineError):
    """Records that cannot be read, or do not hold what they should; the message is one line."""


class RecordWriter:
    """Appends records to a ``.jsonl`` file, which is made or continued; numbers that are not finite become ``null``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # what could not be written is not tried again on closing

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one line and hands it to the operating system, so that a killed process loses none."""
        unwritten = (json.dumps(_finite(record), allow_nan=False, ensure_ascii=False) + "\n").encode()
        try:
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        except OSError as error:
            raise explain_os_error(error, f"writing the records {self.path}") from error

    def sync(self) -> None:
        """Forces the lines onto the disk; ``OSError`` too where another file has this name by now."""
        try:
            opened = os.fstat(self._file.fileno())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise explain_os_error(error, f"writing the records {self.path}") from error
        if not (self.path.exists() and os.path.samestat(opened, self.path.stat())):
            raise FileNotFoundError(
                errno.ENOENT,
                f"writing the records {self.path}: the file was removed or replaced while the run was writing it, "
                "perhaps with its folder; train again",
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_records(path: Path | str) -> list[Record]:
    """Reads the training log ``metrics.jsonl`` of a run.

    Args:
        path: the file. An incomplete last line, from a process that was killed, is skipped.

    Returns:
        The records, dictionaries with at least "step", in the order of the file; an empty list if there is no file.

    Raises:
        RecordsError: another line is not a record; the message has its number.
    """
    return [record for record, _ in _parsed(Path(path))]


def truncate_records(path: Path, step: int) -> None:
    """Drops the records after ``step`` and an unfinished last line, atomically, for a run that continues."""
    if path.exists():
        lines = [line for record, line in _parsed(path) if record["step"] <= step]
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def _parsed(path: Path) -> list[tuple[Record, str]]:
    """The records with their lines."""
    if not path.exists():
        return []
    *complete, unfinished = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[tuple[Record, str]] = []
    for number, line in enumerate(complete, start=1):
        try:
            records.append((_parse(line), line))
        except JSONError as error:
            raise RecordsError(
                f"{path}, line {number}: expected a record, a JSON object with its step, got {shown(line)} ({error}); "
                "remove the line, or train again"
            ) from error
    with suppress(JSONError):
        records.append((_parse(unfinished), unfinished))
    return records


def _parse(line: str) -> Record:
    parse_json(line, _LINE)
    record: Record = json.loads(line)
    return record


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
