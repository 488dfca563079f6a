"""Options that are declared once: the annotation of a field is its check, its docstring line is its description.

A class of options is a frozen dataclass that inherits :class:`Options`. The allowed values of its fields are given by
their annotations, what they mean under ``Args:`` of the class's docstring; sections of recipes and the reference of
recipes are derived from both. pydantic is imported with the first instance: importing this library does not wait for
it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MinLen

from probattn.checks import shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Preset = Literal["default", "paper", "release"]
"""Settings of this library, of a paper, or of the code that its authors released."""
ReleasePreset = Literal["default", "release"]
"""Settings of this library, or of the code that a paper's authors released."""

Positive = Annotated[float, Gt(0)]  # a number > 0
NonNegative = Annotated[float, Ge(0)]  # a number >= 0
Share = Annotated[float, Ge(0), Le(1)]  # a number in [0, 1]
OpenShare = Annotated[float, Gt(0), Lt(1)]  # a number in (0, 1)
Dropout = Annotated[float, Ge(0), Lt(1)]  # a number in [0, 1)
Count = Annotated[int, Ge(1)]  # an integer >= 1
Natural = Annotated[int, Ge(0)]  # an integer >= 0

Filled = Annotated[str, MinLen(1)]  # text of one character or more

Uncertainty = Literal["draws", "moments"]  # what the uncertainty of a prediction is taken from
ConformalScore = Literal["lac", "aps"]
"""Least ambiguous sets (Sadinle et al. 2019), or adaptive ones (Romano et al. 2020)."""

Item = TypeVar("Item")
SomeOf = Annotated[Sequence[Item], MinLen(1)]  # one item or more; kept as a tuple

_SECTION = re.compile(r"^(\w+):$")
_ENTRY = re.compile(r"^(\w+): (.*)$")


class Options:
    r"""Base of frozen dataclasses whose fields are checked by their annotations.

    Types are taken strictly: a text is no number and a truth value no integer, but an integer is accepted as a
    float; infinities and NaN are refused. Lists become tuples, so that options compare and hash alike. Rules between
    fields stand in a ``__post_init__`` that calls this one first.

    Raises:
        ValueError: a value is outside what its annotation allows; one line that names class, option, what was expected
            and what came.

    Example:
        >>> @dataclass(frozen=True)
        ... class Cooling(Options):
        ...     '''How a temperature falls.
        ...
        ...     Args:
        ...         rate: of each step, > 0.
        ...         steps: their number.
        ...     '''
        ...
        ...     rate: Positive = 0.1
        ...     steps: Count | None = None
        >>> Cooling(rate=1)
        Cooling(rate=1.0, steps=None)
        >>> Cooling(steps=0)
        Traceback (most recent call last):
        ValueError: Cooling.steps: expected an integer >= 1 or None, got 0
        >>> descriptions(Cooling)["rate"]
        'Of each step, > 0.'
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        values = {field.name: getattr(self, field.name) for field in fields(kind)}
        for name, value in _checked(kind, values).items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True, kw_only=True)
class DrawingOptions(Options):
    """How a finished run predicts, as far as its recipe does not say it.

    Args:
        num_samples: posterior draws; the recipe's by default.
        seed: seed of the draws; the recipe's by default.
        uncertainty: draws, or moments, their closed form at a lower cost.
    """

    num_samples: Count | None = None
    seed: Natural | None = None
    uncertainty: Uncertainty = "draws"


def hints(options: type[Any]) -> Mapping[str, Any]:
    """The annotations of a class of options by name, with their constraints, in the order of the constructor."""
    types = get_type_hints(options, include_extras=True)
    return {field.name: types[field.name] for field in fields(options)}


def descriptions(options: type[Any]) -> Mapping[str, str]:
    """Meaning of each option, from ``Args:`` of the docstring, as Markdown with roles and quoted words as code."""
    texts: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        if issubclass(kind, Options) and kind.__doc__ and "__doc__" in vars(kind):
            texts |= {name: _plain(text) for name, text in _arguments(inspect.cleandoc(kind.__doc__))}
    return texts


@functools.cache
def _adapter(options: Any) -> TypeAdapter[dict[str, Any]]:
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict

    make: Any = TypedDict
    typed = make(options.__name__, dict(hints(options)))
    typed.__pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(typed)


def _checked(options: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values, converted as their annotations say; ``ValueError`` for the first that does not fit."""
    from pydantic import ValidationError

    try:
        return _adapter(options).validate_python(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    name = str(problems[0]["loc"][0])
    kinds = [problem["type"] for problem in problems if problem["loc"][0] == name]
    words = expected(hints(options)[name], kinds=kinds)
    raise ValueError(f"{options.__name__}.{name}: expected {words}, got {shown(values[name])}")


def _arguments(docstring: str) -> Iterable[tuple[str, str]]:
    """Names and texts under ``Args:``."""
    section, name, lines = "", "", list[str]()
    for line in [*docstring.splitlines(), "End:"]:
        heading, entry = _SECTION.match(line), _ENTRY.match(line.removeprefix("    "))
        begins = section == "Args" and entry is not None and line.startswith("    ") and line[4] != " "
        if (heading or begins) and name:
            yield name, " ".join(" ".join(lines).split())
            name = ""
        if heading:
            section = heading[1]
        elif begins and entry:
            name, lines = entry[1], [entry[2]]
        elif name:
            lines.append(line)


def _plain(text: str) -> str:
    text = re.sub(r":[\w:]+:`(?:~[\w.]*\.)?([^`]*)`", r"`\1`", text.replace("``", "`"))
    text = re.sub(r'"(\w+)"', r"`\1`", text)
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Vocabulary:
    """Names of values in messages: in Python, or in a recipe."""

    integer: str = "an integer"
    integers: str = "integers"
    some: str = ""
    boolean: str = "True or False"
    nothing: str = "None"
    choice: str = "one of {}"


PYTHON = Vocabulary()
RECIPE = Vocabulary("a whole number", "whole numbers", "a list of ", "true or false", "null", "")


def expected(
    annotation: Any,
    metadata: Sequence[Any] = (),
    vocabulary: Vocabulary = PYTHON,
    *,
    kinds: Sequence[str] = (),
) -> str:
    """Text of the values that an annotation allows; ``kinds`` are names of errors that pydantic found."""
    words = _words(annotation, tuple(metadata), vocabulary)
    if get_origin(annotation) is Literal and vocabulary.choice:
        words = vocabulary.choice.format(", ".join(map(repr, get_args(annotation))))
    return words.replace("a number", "a finite number") if "finite_number" in kinds else words


def _words(annotation: Any, metadata: tuple[Any, ...], vocabulary: Vocabulary) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], (*_constraints(arguments[1:]), *metadata), vocabulary)
    if origin is Literal:
        return _joined([repr(argument) for argument in arguments])
    if origin in (Union, UnionType):
        return _joined([word for member in arguments for word in _member(member, metadata, vocabulary)])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping of names to {_words(arguments[1], (), vocabulary)}"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        some = "one or more " if any(isinstance(item, MinLen) for item in metadata) else ""
        return f"{vocabulary.some}{some}{_plural(_words(arguments[0], (), vocabulary), vocabulary)}"
    return _single(annotation, metadata, vocabulary)


def _constraints(metadata: Iterable[Any]) -> Iterable[Any]:
    """Constraints, also those that a pydantic field holds."""
    return [inner for item in metadata for inner in getattr(item, "metadata", (item,))]


def _member(annotation: Any, metadata: tuple[Any, ...], vocabulary: Vocabulary) -> list[str]:
    """The words of a union's member; the choices of a literal are listed with the other members."""
    if get_origin(annotation) is Literal:
        return [repr(argument) for argument in get_args(annotation)]
    return [_words(annotation, () if annotation is NoneType else metadata, vocabulary)]


def _single(annotation: Any, metadata: tuple[Any, ...], vocabulary: Vocabulary) -> str:
    phrases: dict[Any, str] = {
        NoneType: vocabulary.nothing,
        bool: vocabulary.boolean,
        str: "text",
        Any: "anything",
    }
    if annotation in phrases:
        return phrases[annotation]
    if get_origin(annotation) is Callable:
        return "a function"
    if annotation in (int, float):
        return (vocabulary.integer if annotation is int else "a number") + _range(metadata)
    if not isinstance(annotation, type):
        raise TypeError(f"no words for {annotation!r}")
    return annotation.__name__ if vocabulary is PYTHON else "a section"


def _range(metadata: tuple[Any, ...]) -> str:
    """The bounds among constraints: " > 0", " in [0, 1)"."""
    bounds: dict[str, Any] = {}
    for item in metadata:
        for kind in (Gt, Ge, Lt, Le):
            if isinstance(item, kind):
                bounds[kind.__name__.lower()] = getattr(item, kind.__name__.lower())
    low, high = bounds.keys() & {"gt", "ge"}, bounds.keys() & {"lt", "le"}
    if low and high:
        opening = "(" if "gt" in bounds else "["
        closing = ")" if "lt" in bounds else "]"
        return f" in {opening}{bounds[low.pop()]}, {bounds[high.pop()]}{closing}"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return "".join(f" {signs[name]} {value}" for name, value in bounds.items())


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plural(words: str, vocabulary: Vocabulary) -> str:
    plurals = {"a number": "numbers", "text": "texts", "a function": "functions"}
    for one, many in {vocabulary.integer: vocabulary.integers, **plurals}.items():
        if words.startswith(one):
            return many + words.removeprefix(one)
    return words
