"""Sections of recipes derived from options: keys, defaults, ranges and descriptions stand in the options alone."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import Field, create_model, model_validator

from probattn.options import Options, descriptions, hints
from probattn.sites import Method
from probattn.tasks.sections.base import Section

LEFT_TO_CONVERT = "; None leaves it to `convert`"
"""What descriptions say of ``layers`` and ``attention``; in a recipe "all" is meant instead."""
WORDS = {"None": "null", "True": "true", "False": "false"}
"""What YAML calls Python's constants."""


class MethodSection(Section):
    """A section that asks for an attention method; its keys are the method's options.

    Attributes:
        method_class: the options.
        names: key of each option that is one.
    """

    method_class: ClassVar[type[Method]]
    names: ClassVar[Mapping[str, str]]

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        paper = getattr(cls.method_class, "paper", None)
        if not isinstance(value, dict) or value.get("preset") != "paper" or paper is None:
            return value
        usual, changed = asdict(cls._made()), asdict(paper())
        return {cls.names[n]: changed[n] for n in cls.names if changed[n] != usual[n]} | value

    @model_validator(mode="after")
    def _agree(self) -> MethodSection:
        self.build()
        return self

    def build(self, seed: int = 0) -> Any:
        """The options of the method.

        Args:
            seed: of what it draws.

        Returns:
            The options; None where the section asks for nothing.

        Raises:
            ValueError: options that exclude each other.
        """
        options = {name: getattr(self, key) for name, key in self.names.items()}
        if "seed" in hints(self.method_class):
            options["seed"] = seed
        return self._made(**options)

    @classmethod
    def _made(cls, **options: Any) -> Any:
        make: Any = cls.method_class
        return make(**options)


class OptionsSection(Section):
    """A section whose keys are those of a class of options, ``options_class``."""

    options_class: ClassVar[type[Options]]

    def build(self) -> Any:
        """The options."""
        make: Any = self.options_class
        return make(**self.model_dump())


def options_section(options: type[Options]) -> Any:
    """The section of a class of options, with its keys, defaults, ranges and descriptions."""
    make: Any = create_model
    model = make(options.__name__, __base__=OptionsSection, **option_fields(options))
    model.options_class = options
    return model


def option_fields(options: type[Options]) -> dict[str, tuple[Any, Any]]:
    """Annotations and fields of a section with the keys of a class of options."""
    own: Any = options
    described = descriptions(own)
    found: dict[str, tuple[Any, Any]] = {}
    for option in fields(own):
        text = re.sub(r"\b(None|True|False)\b", lambda word: WORDS[word[0]], described[option.name])
        found[option.name] = (_written(hints(own)[option.name]), Field(**_default(option), description=text))
    return found


def method_section(method: type[Method]) -> Any:
    """The section of a method.

    Args:
        method: its options.

    Returns:
        A model with a key for each option, as :class:`probattn.sites.RecipeKeys` says.

    Example:
        >>> from probattn import DisagreementAttention
        >>> method_section(DisagreementAttention)(weight=1).build()
        DisagreementAttention(method='outputs', weight=1.0, ...)
    """
    written, own = method.recipe, option_fields(method)
    renamed = {"attention": "kind", **written.renamed}
    names = {name: renamed.get(name, name) for name in own if name != "seed"}
    keys = {key: own[name] for name, key in names.items()}
    for name in ("layers", "attention"):
        if name in own:
            annotation, given = own[name]
            text = given.description.replace(LEFT_TO_CONVERT.replace("None", "null"), "")
            keys[names[name]] = (_without_none(annotation), Field(default="all", description=text))
    keys |= {} if written.extra is None else option_fields(written.extra)
    order = [*written.order, *(key for key in keys if key not in written.order)]
    make: Any = create_model
    model = make(method.__name__, __base__=MethodSection, **{key: keys[key] for key in order})
    model.method_class, model.names = method, names
    return model


def _default(option: Any) -> dict[str, Any]:
    if option.default_factory is not MISSING:
        return {"default_factory": option.default_factory}
    value = option.default
    if isinstance(value, tuple):
        return {"default_factory": lambda: list(value)}
    return {} if value is MISSING else {"default": value}


def _written(annotation: Any) -> Any:
    """A type as YAML has it: lists for sequences."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[(_written(arguments[0]), *arguments[1:])]
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(_written, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return GenericAlias(dict, arguments)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return GenericAlias(list, (_written(arguments[0]),))
    return annotation


def _without_none(annotation: Any) -> Any:
    return functools.reduce(operator.or_, (given for given in get_args(annotation) if given is not NoneType))
