"""A run's records: one JSON object a line, flushed as written, cut back to a checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from probattn.inference.durable import explain_os_error, write_atomically

Record = dict[str, Any]
"""One line of ``metrics.jsonl``: ``kind`` ("train" or "validation"), ``step`` and what was measured."""


class RecordWriter:
    """Appends records to a ``.jsonl`` file, each handed to the operating system once :meth:`append` returns.

    Numbers that are not finite become ``null``: JSON has no NaN.

    Args:
        path: the file; made with its folder if missing, continued if present.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
        >>> with RecordWriter(path) as writer:
        ...     writer.append({"kind": "train", "step": 1, "loss": 0.5})
        >>> read_records(path)
        [{'kind': 'train', 'step': 1, 'loss': 0.5}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # what could not be written is not tried again on closing

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one line and hands it to the operating system, so that a killed process loses none.

        Raises:
            OSError: the disk is full or gone; the message says where and what to do.
        """
        rest = (json.dumps(_finite(record), allow_nan=False, ensure_ascii=False) + "\n").encode()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise explain_os_error(error, f"writing the records {self.path}") from error

    def sync(self) -> None:
        """Forces the lines onto the disk; a checkpoint does so before it counts as complete."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise explain_os_error(error, f"writing the records {self.path}") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(path: Path | str) -> list[Record]:
    """Reads ``metrics.jsonl``.

    Args:
        path: the file. An unfinished last line, which a killed process leaves, is passed over.

    Returns:
        The records in the order written; none for a missing file.

    Raises:
        ValueError: any other line that is no JSON object, named by its number.
    """
    path = Path(path)
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    complete, unfinished = lines[:-1], lines[-1]
    records: list[Record] = []
    for number, line in enumerate(complete, start=1):
        record = _parse(line)
        if record is None:
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {line[:60]!r}")
        records.append(record)
    last = _parse(unfinished)
    return records if last is None else [*records, last]


def truncate_records(path: Path, step: int) -> None:
    """Drops the records after ``step`` and an unfinished last line, atomically.

    A run that continues from the checkpoint of ``step`` then writes the lines that the uninterrupted run would have.
    """
    if not path.exists():
        return
    kept = [record for record in read_records(path) if int(record["step"]) <= step]
    lines = [json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n" for record in kept]
    write_atomically(path, "".join(lines).encode())


def _parse(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
