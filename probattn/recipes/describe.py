"""What values a key takes, in words: for messages and for the reference."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probattn.options import RECIPE, expected


def allowed(field: FieldInfo) -> str:
    """What a key takes.

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
