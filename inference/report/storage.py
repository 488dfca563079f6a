"""Reading and writing ``metrics.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from probattn.inference.durable import write_atomically
from probattn.inference.report.experiment_records import ExperimentResults
from probattn.inference.report.record import Record
from probattn.inference.report.results import SCHEMA_VERSION, Results
from probattn.inference.report.translation_records import TranslationResults

Kind = TypeVar("Kind", bound=Record)
AnyResults = Results | TranslationResults | ExperimentResults
"""Records of a run of whatever kind."""

KINDS: Mapping[str, type[TranslationResults | ExperimentResults]] = MappingProxyType(
    {"translation": TranslationResults, "experiment": ExperimentResults}
)
"""Records by the kind that they name; others are about classification."""


class ResultsFileError(ValueError):
    """A file that is no readable ``metrics.json``; the message says where and what to do."""


def write_results(results: AnyResults, path: Path | str) -> Path:
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


def read_any_results(path: Path | str) -> AnyResults:
    """Reads what :func:`write_results` wrote, of a run of whatever kind.

    Args:
        path: the file.

    Returns:
        The records.

    Raises:
        FileNotFoundError: no such file.
        ResultsFileError: the file is corrupt, of another schema version, or holds something else.
    """
    text, content = _content(Path(path))
    kind: type[AnyResults] = KINDS.get(content.get("kind", ""), Results)
    return _validated(Path(path), text, kind)


def read_results(path: Path | str) -> Results:
    """Reads what :func:`write_results` wrote.

    Args:
        path: the file.

    Returns:
        The records.

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
        probattn.inference.report.storage.ResultsFileError: .../metrics.json: expected schema version 1, got 7; ...
    """
    return _validated(Path(path), _content(Path(path))[0], Results)


def _content(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and the object it holds, which is of this schema version."""
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = json.loads(text)
    except UnicodeDecodeError as error:
        raise ResultsFileError(
            f"{path}: expected UTF-8 text, got byte {error.start} of something else"
        ) from error
    except json.JSONDecodeError as error:
        raise ResultsFileError(
            f"{path}, line {error.lineno}, column {error.colno}: expected JSON, got {error.msg.lower()!r}; "
            "evaluate the run again to write the file anew"
        ) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version is None:
        raise ResultsFileError(
            f"{path}: expected an object with a schema_version; this is no metrics.json of a run"
        )
    if version != SCHEMA_VERSION:
        raise ResultsFileError(
            f"{path}: expected schema version {SCHEMA_VERSION}, got {version!r}; evaluate the run again with this "
            "version of probattn (`probattn report RUN --again`), or read the file with the version that wrote it"
        )
    return text, content


def _validated(path: Path, text: str, kind: type[Kind]) -> Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ResultsFileError(
            f"{path}: {_first(error)}; evaluate the run again to write the file anew"
        ) from error


def _lines(value: Any) -> str:
    """JSON with one record of a list a line: readable, and small where there are attention maps."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "the whole"
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    return f"at {place}: {problem['msg']}, got {str(problem['input'])[:60]!r}{more}"
