"""The attention methods there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeVar, cast

from probattn.options import descriptions
from probattn.sites.alignment import AlignmentAttention
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.disagreement import DisagreementAttention
from probattn.sites.method import Method
from probattn.sites.repulsive import RepulsiveAttention

Kind = TypeVar("Kind", bound=type[Method])


class MethodRegistry:
    """Classes of options of attention methods; those before come first where a network has several.

    Args:
        methods: the classes.

    Example:
        >>> [method.kind for method in METHODS]
        ['bayesian', 'alignment', 'repulsive', 'disagreement']
        >>> METHODS["alignment"].section
        'alignment'
    """

    def __init__(self, methods: Iterable[type[Method]] = ()) -> None:
        self._methods: list[type[Method]] = []
        for method in methods:
            self.register(method)

    def __iter__(self) -> Iterator[type[Method]]:
        return iter(tuple(self._methods))

    def __getitem__(self, kind: str) -> type[Method]:
        """The method of a kind; ``KeyError`` where there is none."""
        match = next((method for method in self._methods if method.kind == kind), None)
        if match is None:
            kinds = ", ".join(repr(method.kind) for method in self._methods)
            raise KeyError(
                f"no attention method of kind {kind!r} is registered, only {kinds}; import the module that registers it"
            )
        return match

    def key(self, methods: Iterable[Method]) -> str | None:
        """Name in records of a network with these methods, that of the first registered one; None without methods."""
        options = tuple(methods)
        return next(
            (kind.key for kind in self._methods for option in options if isinstance(option, kind)), None
        )

    def register(self, method: Kind) -> Kind:
        """Adds a method after the others and returns its class; a decorator.

        Raises:
            TypeError: it is no dataclass of options with kind, section and key, and a description of every option.
            ValueError: another method has its kind, or its section of recipes.
        """
        missing = [name for name in ("kind", "section", "key") if not hasattr(method, name)]
        if missing or "__dataclass_fields__" not in vars(method):
            raise TypeError(
                f"{method.__name__}: expected a frozen dataclass of options with kind, section and key, got none of "
                f"{', '.join(missing) or 'dataclass fields'}"
            )
        undescribed = [
            option.name for option in fields(cast(Any, method)) if option.name not in descriptions(method)
        ]
        if undescribed:
            raise TypeError(
                f"{method.__name__}: expected a line for {undescribed[0]!r} under Args of its docstring"
            )
        for registered in self._methods:
            for name in ("kind", "section"):
                if getattr(registered, name) == getattr(method, name):
                    problem = f"{method.__name__}.{name}: expected one that no method has"
                    raise ValueError(f"{problem}, got {getattr(method, name)!r} of {registered.__name__}")
        self._methods.append(method)
        return method

    def remove(self, method: type[Method]) -> None:
        """Removes a method; ``ValueError`` if it is not registered."""
        self._methods.remove(method)


METHODS = MethodRegistry([BayesianAttention, AlignmentAttention, RepulsiveAttention, DisagreementAttention])
"""Every attention method, in order of precedence."""
