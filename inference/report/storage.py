"""Reading and writing ``metrics.json``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from probattn.checks import shortened, shown
from probattn.data import DataWarning
from probattn.files.durable import write_atomically
from probattn.files.json_files import JSONError, parse_json, read_json
from probattn.inference.report.results import SCHEMA_VERSION, Results

Content = TypeVar("Content", bound=BaseModel)
WITHOUT_P = 1
"""Schema version whose comparisons have no p values; all else is as in the present one."""


class ResultsFileError(ValueError):
    """A file that is no readable ``metrics.json``; the message says where and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


def write_results(results: BaseModel, path: Path | str) -> Path:
    """Writes the records as JSON; readers see the old file or the new one, never a part.

    Floating-point numbers keep every bit: :func:`read_results` gives equal records.

    Args:
        results: the records.
        path: the file, ``metrics.json`` by custom.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written; what was there stays.
    """
    path = Path(path)
    fields = [
        f"{json.dumps(name)}: {_lines(value)}" for name, value in results.model_dump(mode="json").items()
    ]
    write_atomically(path, ("{\n" + ",\n".join(fields) + "\n}\n").encode())
    return path


def read_results(path: Path | str, kind: type[Any] = Results) -> Any:
    """Reads what :func:`write_results` wrote.

    Records of schema version 1 come without their comparisons, which have no p values there, and with a warning.

    Args:
        path: the file.
        kind: class of the records; those of a task other than classification are in its folder of ``probattn.tasks``.

    Returns:
        The records, of the class ``kind``.

    Raises:
        FileNotFoundError: no such file.
        ResultsFileError: the file is corrupt, of another schema version, or holds something else.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.json"
        >>> _ = path.write_text('{"schema_version": 7}')
        >>> read_results(path)
        Traceback (most recent call last):
        ...
        probattn.inference.report.storage.ResultsFileError: .../metrics.json: expected schema version 2, got 7; ...
    """
    return _records(Path(path), _header(Path(path)), kind)


class _Header(BaseModel):
    """What tells whose records a file holds, and the records as they stand there."""

    model_config = ConfigDict(strict=True, extra="allow")

    schema_version: JsonValue = None


def _header(path: Path) -> _Header:
    """The file's header, which is of a schema version that can be read."""
    header = _read(path, _Header)
    if header.schema_version is None:
        raise ResultsFileError(
            f"{path}: expected an object with a schema_version; this is no metrics.json of a run"
        )
    if header.schema_version not in (WITHOUT_P, SCHEMA_VERSION):
        raise ResultsFileError(
            f"{path}: expected schema version {SCHEMA_VERSION}, got {shown(header.schema_version)}; evaluate the run "
            "again with this version of probattn (`probattn report RUN --again`), or read the file with the version "
            "that wrote it"
        )
    return header


def _records(path: Path, header: _Header, kind: type[Content]) -> Content:
    """The records; those of schema version 1 without their comparisons, about which nothing can be claimed."""
    if header.schema_version == SCHEMA_VERSION:
        return _read(path, kind)
    content = header.model_dump(exclude_unset=True) | {"schema_version": SCHEMA_VERSION}
    if content.pop("differences", None):
        warnings.warn(
            DataWarning(
                f"{path}: its comparisons are left out, since an earlier version wrote them without p values; "
                "`probattn report RUN --again` makes them"
            ),
            stacklevel=3,
        )
    try:
        return parse_json(json.dumps(content), TypeAdapter(kind))
    except JSONError as error:
        raise ResultsFileError(f"{path}: {error}; evaluate the run again to write the file anew") from error


def _read(path: Path, kind: type[Content]) -> Content:
    try:
        return read_json(path, TypeAdapter(kind))
    except JSONError as error:
        raise ResultsFileError(f"{error}; evaluate the run again to write the file anew") from error


def _lines(value: Any) -> str:
    """JSON with one record of a list a line: readable, and small where there are attention maps."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
