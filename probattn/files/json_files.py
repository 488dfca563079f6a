"""JSON that others may have written: read with its types checked, so that what comes back is what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from probattn.checks import shown

Content = TypeVar("Content")


class JSONError(ValueError):
    """JSON that is damaged or holds something else; the message says where and what."""


def read_json(path: Path, kind: TypeAdapter[Content]) -> Content:
    """Reads a file.

    Args:
        path: of the file.
        kind: what it should hold.

    Returns:
        What it holds.

    Raises:
        JSONError: it holds something else; the message names the file.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        return parse_json(data, kind)
    except JSONError as error:
        raise JSONError(f"{path}: {error}") from error


def parse_json(data: bytes | str, kind: TypeAdapter[Content]) -> Content:
    r"""Reads JSON. Neither depth nor size of a number nor bytes that are no text raise anything else.

    Args:
        data: the JSON, text or UTF-8.
        kind: what it should hold.

    Returns:
        What it holds.

    Raises:
        JSONError: it holds something else.

    Example:
        >>> parse_json('{"bleu": 1.5}', TypeAdapter(dict[str, float]))
        {'bleu': 1.5}
        >>> parse_json('{"bleu": "much"}', TypeAdapter(dict[str, float]))
        Traceback (most recent call last):
        ...
        probattn.files.json_files.JSONError: at bleu: Input should be a valid number, ..., got 'much'
    """
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        raise JSONError(first_problem(error)) from error


def first_problem(error: ValidationError) -> str:
    """The first of the problems that pydantic found, with its place, and how many there are besides."""
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "json_invalid":
        return f"expected JSON, got {problem['ctx']['error']}"
    place = ".".join(str(part) for part in problem["loc"]) or "the whole"
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    return f"at {place}: {problem['msg']}, got {shown(problem['input'])}{more}"
