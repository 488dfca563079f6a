"""Checks of options and arguments, with errors that name them: ``owner.name: expected what, got what``."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, TypeGuard, TypeVar, get_args

MESSAGE = 480  # most characters of a message
Key = TypeVar("Key")
Value = TypeVar("Value")


class MissingPackageError(ImportError):
    """A package of an extra is not installed. The message is one line that names the extra."""


class PlainWarning(UserWarning):
    """A warning that the command line prints as a line."""


class OneLineError(ValueError):
    """An error whose message is :func:`shortened` to one line."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


def no_run(run: object) -> str:
    """The message for a folder that is not one of a run."""
    return (
        f"{run}: expected a run folder with recipe.yaml, found none; `probattn train` makes one (networks of a Trainer "
        "are for Python)"
    )


def missing(owner: str, package: str, extra: str) -> MissingPackageError:
    """The error to raise where ``owner`` needs a package of an extra that is not installed."""
    return MissingPackageError(
        f"{owner}: expected the package {package}, which is not installed; pip install 'probattn[{extra}]'",
        name=package,
    )


def optional(owner: str, module: str, extra: str) -> ModuleType:
    """A module of a package that an extra brings; :class:`MissingPackageError` names ``owner`` where it is missing."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise missing(owner, package, extra) from error


def imported_when_used(
    package: str, names: Iterable[str], modules: Iterable[str], options: Iterable[str]
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names, those in ``options`` from that module, are imported when used."""
    public, light = frozenset(names), frozenset(options)

    def attribute(name: str) -> Any:
        for module in (["options"] if name in light else modules) if name in public else ():
            value = getattr(import_module(f"{package}.{module}"), name, None)
            if value is not None:
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute


def shortened(text: str, limit: int = MESSAGE) -> str:
    """A text on one line and, beyond ``limit`` >= 8 characters, without its middle; its end gets a third of them."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    end = (limit - 3) // 3
    return f"{line[: limit - 3 - end]}...{line[-end:]}"


def is_blank(text: str) -> bool:
    """Whether a text has nothing but white space and signs of no width."""
    return all(sign.isspace() or unicodedata.category(sign) == "Cf" for sign in text)


def shown(value: object, limit: int = 60) -> str:
    """A value as a message shows it: quoted, on one line, shortened."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, keys and values in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def check_choice(owner: str, name: str, value: object, choices: Any) -> None:
    """Raises ``ValueError`` unless ``value`` is one of the ``Literal`` ``choices``."""
    allowed = get_args(choices)
    if value not in allowed:
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{owner}.{name}: expected one of {listed}, got {shown(value)}")


def check_number(owner: str, name: str, value: object, *, positive: bool) -> None:
    """Raises ``ValueError`` unless ``value`` is a finite number >= 0, or > 0."""
    bound = "> 0" if positive else ">= 0"
    if not _is_number(value):
        raise ValueError(f"{owner}.{name}: expected a finite number {bound}, got {shown(value)}")
    if value < 0 or (positive and value == 0):
        raise ValueError(f"{owner}.{name}: expected a number {bound}, got {value}")


def check_share(owner: str, name: str, value: object, *, zero: bool = True, one: bool = True) -> None:
    """Raises ``ValueError`` unless ``value`` is a number from 0 to 1; ``zero`` and ``one`` allow the two ends."""
    if not _is_number(value) or not 0 <= value <= 1 or (value == 0 and not zero) or (value == 1 and not one):
        bounds = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"{owner}.{name}: expected a number in {bounds}, got {shown(value)}")


def check_integer(owner: str, name: str, value: object, *, minimum: int) -> None:
    """Raises ``ValueError`` unless ``value`` is an integer >= ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{owner}.{name}: expected an integer >= {minimum}, got {shown(value)}")


def check_instance(owner: str, name: str, value: object, kind: type, words: str) -> None:
    """Raises ``TypeError`` unless ``value`` is of the ``kind``, which ``words`` describe."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{owner}.{name}: expected {words}, got {value if isinstance(value, str) else type(value)!r}"
        )


def check_batch(owner: str, batch: object) -> None:
    """Raises ``TypeError`` unless ``batch`` is a mapping without lists or texts, which are no tensors."""
    advice = "tokenize texts with return_tensors='pt'; collate rows of a data set; take the batches of a loader in turn"
    if not isinstance(batch, Mapping):
        got = type(batch).__name__
        raise TypeError(f"{owner}: expected a batch, a mapping of tensors by name, got {got}; {advice}")
    for name, value in batch.items():
        if isinstance(value, list | tuple) and value and all(hasattr(item, "shape") for item in value):
            raise TypeError(
                f"{owner}: expected a tensor under {name!r}, got {len(value)} tensors in a {type(value).__name__}; a "
                f"batch has one tensor a name: give each its own, such as '{name}_0'"
            )
        array = hasattr(value, "__array__") and not hasattr(value, "requires_grad")
        if isinstance(value, (str, list)) or array:
            raise TypeError(f"{owner}: expected a tensor under {name!r}, got {shown(value)}; {advice}")


def _is_number(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
