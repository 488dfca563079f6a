"""From what pydantic found to sentences that name key, place, what was expected and what came."""

from __future__ import annotations

import re
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from probattn.checks import shown
from probattn.data.errors import nearest
from probattn.options import RECIPE, expected
from probattn.tasks.sections.yaml_nodes import KeyPath, Places


def allowed(field: FieldInfo) -> str:
    """The values that a key takes, in words.

    Example:
        >>> from pydantic import Field
        >>> class Example(BaseModel):
        ...     rate: float | None = Field(default=None, gt=0, le=1)
        >>> allowed(Example.model_fields["rate"])
        'a number in (0, 1] or null'
    """
    return expected(field.annotation, tuple(field.metadata), RECIPE)


def section(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, also where it may be null; None for other keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        inner = section(argument)
        if inner is not None:
            return inner
    return None


def entries(annotation: Any) -> type[BaseModel] | None:
    """The section that every entry of a mapping of names holds; None for other keys.

    Example:
        >>> class Example(BaseModel):
        ...     rate: float
        >>> entries(dict[str, Example]) is Example, entries(dict[str, float])
        (True, None)
    """
    return section(get_args(annotation)[1]) if get_origin(annotation) is dict else None


ONLY_MISPLACED = 3
"""Sections named, at most, for a key that stands in the wrong one."""


def problems(error: ValidationError, model: type[BaseModel], positions: Places) -> list[str]:
    """One sentence for every key that is wrong.

    Args:
        error: what pydantic found.
        model: the model that was to be made.
        positions: where the keys stand, in words.

    Returns:
        The sentences, in the order of the model's keys.
    """
    messages: dict[tuple[KeyPath, str], str] = {}
    for details in error.errors(include_url=False):
        path, field = _field(model, details["loc"])
        kind = details["type"]
        key = (path, kind if kind in ("extra_forbidden", "missing", "value_error") else "value")
        messages.setdefault(key, _sentence(details, path, field, model, positions))
    return list(messages.values())


def _sentence(
    details: ErrorDetails, path: KeyPath, field: FieldInfo | None, model: type[BaseModel], positions: Places
) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown(path, model, positions)
    if kind == "missing":
        return f"missing key {str(path[-1])!r}{_inside(path)}{_place(path[:-1], positions)}"
    if kind == "value_error":
        message = re.sub(
            r"^[A-Z]\w+Attention(\.|: )", "", str(details["ctx"]["error"])
        )  # the options' own class
        return f"{_dotted(path)}{_place(path, positions)}: {message}"
    expected = "keys and values" if field is None or section(field.annotation) else allowed(field)
    got = details["input"]
    if kind == "string_pattern_mismatch":
        expected = "letters, digits, spaces, '.', '-', '_'"
    if kind == "string_too_short":
        expected += ", not empty"
    if kind == "finite_number":
        expected = f"{expected}, finite"
    return f"{_dotted(path)}{_place(path, positions)}: expected {expected}, got {_shown(got)}"


def _shown(value: Any) -> str:
    """A value as a recipe has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _unknown(path: KeyPath, model: type[BaseModel], positions: Places) -> str:
    name = str(path[-1])
    message = f"unknown key {name!r}{_inside(path)}{_place(path, positions)}"
    here = _at(model, path[:-1])
    near = None if here is None else nearest(name, here.model_fields)
    if near is not None and near != name:
        return f"{message}; did you mean {near!r}?"
    homes = [dotted for dotted in _keys(model) if dotted.rpartition(".")[2] == name][:ONLY_MISPLACED]
    if homes:
        return f"{message}; did you mean {' or '.join(homes)}?"
    names = ", ".join(here.model_fields) if here is not None else ""
    hint = "; one of your own task or method is known once its module is imported" if len(path) == 1 else ""
    return f"{message}; known are {names}{hint}" if names else message


def _keys(model: type[BaseModel], before: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        dotted = f"{before}{name}"
        keys.append(dotted)
        inner = section(field.annotation)
        if inner is not None:
            keys += _keys(inner, f"{dotted}.")
    return keys


def _field(model: type[BaseModel], loc: tuple[str | int, ...]) -> tuple[KeyPath, FieldInfo | None]:
    """The key that an error is about: its path without what pydantic adds for the members of a union."""
    path: KeyPath = ()
    here: type[BaseModel] | None = model
    field: FieldInfo | None = None
    named: type[BaseModel] | None = None  # what the entries of a mapping are
    for name in loc:
        if named is not None:
            path, here, named = (*path, name), named, None
            continue
        if here is None:
            break
        path = (*path, name)
        field = here.model_fields.get(str(name))
        if field is None:
            break
        here, named = section(field.annotation), entries(field.annotation)
    return path, field


def _at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    here: type[BaseModel] | None = model
    named: type[BaseModel] | None = None
    for name in path:
        if named is not None:
            here, named = named, None
            continue
        field = None if here is None else here.model_fields.get(str(name))
        here = None if field is None else section(field.annotation)
        named = None if field is None else entries(field.annotation)
    return here


def _inside(path: KeyPath) -> str:
    return f" in {_dotted(path[:-1])}" if len(path) > 1 else ""


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path)) or "recipe"


def _place(path: KeyPath, positions: Places) -> str:
    """The place of a key or, where it is not written, of the section around it."""
    while path and path not in positions:
        path = path[:-1]
    return f" ({positions[path]})" if path else ""
