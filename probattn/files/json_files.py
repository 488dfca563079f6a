"""JSON that others may have written, read with its types checked, so that what comes back is what was expected."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError

from probattn.checks import shown
from probattn.files.durable import write_atomically

Content = TypeVar("Content")
JSON_OBJECT = TypeAdapter(dict[str, JsonValue])


class JSONError(ValueError):
    """JSON that is damaged or holds something else; the message gives the place and the problem."""


def read_json(path: Path, kind: TypeAdapter[Content]) -> Content:
    """Reads a file; :class:`JSONError`, which names it, where its content is not of ``kind``."""
    try:
        return parse_json(path.read_bytes().removeprefix(codecs.BOM_UTF8), kind)
    except JSONError as error:
        raise JSONError(f"{path}: {error}") from error


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object a line, all of them or, where that is interrupted, what was there before."""
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def parse_json(data: bytes | str, kind: TypeAdapter[Content]) -> Content:
    """Reads JSON (text or UTF-8); any other content than ``kind``, whatever its bytes, is a :class:`JSONError`."""
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        raise JSONError(first_problem(error)) from error


def first_problem(error: ValidationError) -> str:
    """The first of the problems that pydantic found, with its place, and how many there are besides."""
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "json_invalid":
        return f"expected JSON, got {problem['ctx']['error']}"
    path = ".".join(str(key) for key in problem["loc"]) or "the whole"
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    if problem["type"] == "value_error":  # of a validator of ours, which says what it got
        return f"at {path}: {problem['ctx']['error']}{more}"
    return f"at {path}: {problem['msg']}, got {shown(problem['input'])}{more}"
