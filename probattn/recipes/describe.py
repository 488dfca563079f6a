"""What values a key takes, in words: for messages and for the reference."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo


def allowed(field: FieldInfo) -> str:
    """What a key takes.

    Example:
        >>> from pydantic import Field
        >>> class Example(BaseModel):
        ...     rate: float | None = Field(default=None, gt=0, le=1)
        >>> allowed(Example.model_fields["rate"])
        'a number in (0, 1] or null'
    """
    return _words(field.annotation, tuple(field.metadata))


def section(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, also where it may be null; None for other keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        found = section(argument)
        if found is not None:
            return found
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


def _words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        field = next((item for item in arguments[1:] if isinstance(item, FieldInfo)), None)
        return _words(arguments[0], tuple(field.metadata) if field else arguments[1:])
    if origin is Literal:
        return _joined([repr(argument) for argument in arguments])
    if origin in (Union, UnionType):
        return _joined([word for argument in arguments for word in _member(argument, metadata)])
    if origin is list:
        some = "one or more " if any(isinstance(item, annotated_types.MinLen) for item in metadata) else ""
        return f"a list of {some}{_plural(_words(arguments[0]))}"
    if origin is dict:
        return f"a mapping of names to {_words(arguments[1])}"
    return _plain(annotation, metadata)


def _member(annotation: Any, metadata: tuple[Any, ...]) -> list[str]:
    """The words of a union's member; the choices of a literal stand beside the other members."""
    if get_origin(annotation) is Literal:
        return [repr(argument) for argument in get_args(annotation)]
    return [_words(annotation, () if annotation is NoneType else metadata)]


def _plain(annotation: Any, metadata: tuple[Any, ...]) -> str:
    if annotation is NoneType:
        return "null"
    if annotation is bool:
        return "true or false"
    if annotation is str:
        return "text"
    if annotation in (int, float):
        noun = "a whole number" if annotation is int else "a number"
        return f"{noun}{_range(metadata)}"
    if section(annotation) is not None:
        return "a section"
    raise TypeError(f"no words for {annotation!r}")


def _range(metadata: tuple[Any, ...]) -> str:
    """The bounds among constraints: " > 0", " in [0, 1)"."""
    bounds: dict[str, Any] = {}
    for item in metadata:
        for kind in (annotated_types.Gt, annotated_types.Ge, annotated_types.Lt, annotated_types.Le):
            if isinstance(item, kind):
                bounds[kind.__name__.lower()] = getattr(item, kind.__name__.lower())
    low, high = bounds.keys() & {"gt", "ge"}, bounds.keys() & {"lt", "le"}
    if low and high:
        opening = "(" if "gt" in bounds else "["
        closing = ")" if "lt" in bounds else "]"
        return f" in {opening}{bounds[low.pop()]}, {bounds[high.pop()]}{closing}"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return "".join(f" {signs[name]} {value}" for name, value in bounds.items())


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plural(words: str) -> str:
    for one, many in (("a whole number", "whole numbers"), ("a number", "numbers"), ("text", "texts")):
        if words.startswith(one):
            return many + words.removeprefix(one)
    return words
