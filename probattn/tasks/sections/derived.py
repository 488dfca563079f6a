"""Sections of recipes derived from options: keys, defaults, ranges and descriptions stand in the options alone."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from types import GenericAlias, MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, Union, get_args, get_origin

from pydantic import Field, create_model, model_validator

from probattn.options import Options, descriptions, hints
from probattn.sites import Method
from probattn.tasks.sections.base import Section

LEFT_TO_CONVERT = "; None leaves it to `convert`"
"""What descriptions say of ``layers`` and ``attention``; in a recipe "all" is meant instead."""
WORDS = {"None": "null", "True": "true", "False": "false"}
"""What YAML calls Python's constants."""
RANGE = re.compile(r", (?:[<>]=? -?\d+(?:\.\d+)?|in [\[(][^\])]*[\])])(?=[.;,:]|$)")
"""A range in a description, which stands in a column of its own in the reference."""


class MethodSection(Section):
    """Base class of sections of attention methods; ``names`` maps each option of the method to its key."""

    method_class: ClassVar[type[Method]]
    names: ClassVar[Mapping[str, str]]

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        preset = value.get("preset") if isinstance(value, dict) else None
        if preset not in ("paper", "release"):
            return value
        kind = {"method": value["method"]} if {"method"} <= cls.names.keys() & value.keys() else {}
        usual, changed = asdict(cls._made()), asdict(getattr(cls.method_class, preset)(**kind))
        return {cls.names[n]: changed[n] for n in cls.names if changed[n] != usual[n]} | value

    @model_validator(mode="after")
    def _agree(self) -> MethodSection:
        self.build()
        return self

    def build(self, seed: int = 0) -> Any:
        """The options of the method; None if the section selects none."""
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


class Key(NamedTuple):
    """An option of a class as a key of a section; ``changes`` are its annotation or arguments of ``Field``."""

    options: type[Any]
    option: str
    changes: Mapping[str, Any] = MappingProxyType({})

    def changed(self, changes: Mapping[str, Any]) -> Key:
        """The key with further changes."""
        return self._replace(changes={**self.changes, **changes})


class DrawnSection(Section):
    """A section whose keys are options of several classes; ``drawn`` has the keys by their names."""

    drawn: ClassVar[Mapping[str, Key]] = {}

    def options_of(self, options: type[Any]) -> dict[str, Any]:
        """The values of the options of a class, as its keyword arguments."""
        return {key.option: getattr(self, name) for name, key in self.drawn.items() if key.options is options}


def drawn_section(keys: Mapping[str, Key | tuple[Any, Any]], base: Any = DrawnSection) -> Any:
    """The section of some options and keys of its own (annotation, field), which replace those of ``base``."""
    drawn = {name: key for name, key in keys.items() if isinstance(key, Key)}
    declared = {kind: option_fields(kind) for kind in {key.options for key in drawn.values()}}
    declarations: dict[str, Any] = {}
    for name, key in keys.items():
        if not isinstance(key, Key):
            declarations[name] = key
            continue
        annotation, field = declared[key.options][key.option]
        changes = {"description": _renamed(field.description, key.options, base.drawn | drawn), **key.changes}
        annotation = changes.pop("annotation", annotation)
        default = changes.pop("default", field.default)
        factory = functools.partial(dict, default) if isinstance(default, dict) else field.default_factory
        standard = {"default_factory": factory} if factory else {"default": default}
        declarations[name] = (annotation, Field(**standard, **changes))
    model = create_model("Drawn", __base__=base, **declarations)
    model.drawn = base.drawn | drawn
    return model


def _renamed(text: str, options: type[Any], drawn: Mapping[str, Key]) -> str:
    """A description with the names of keys for those of options."""
    for name, key in drawn.items():
        if key.options is options:
            text = text.replace(f"`{key.option}`", f"`{name}`")
    return text


def options_section(options: type[Options]) -> Any:
    """The section of a class of options, with its keys, defaults, ranges and descriptions."""
    make: Any = create_model
    model = make(options.__name__, __base__=OptionsSection, **option_fields(options))
    model.options_class = options
    return model


def option_fields(options: type[Options]) -> dict[str, tuple[Any, Any]]:
    """Annotations and fields of a section with the keys of a class of options."""
    kind: Any = options
    described = descriptions(kind)
    section_fields: dict[str, tuple[Any, Any]] = {}
    for option in fields(kind):
        text = re.sub(
            r"\b(None|True|False)\b", lambda word: WORDS[word[0]], RANGE.sub("", described[option.name])
        )
        section_fields[option.name] = (
            _written(hints(kind)[option.name]),
            Field(**_default(option), description=text),
        )
    return section_fields


def method_section(method: type[Method]) -> Any:
    """The section of a method, with a key for each option, as :class:`probattn.sites.RecipeKeys` says."""
    written, declared = method.recipe, option_fields(method)
    renamed = {"attention": "kind", **written.renamed}
    names = {name: renamed.get(name, name) for name in declared if name != "seed"}
    keys = {key: declared[name] for name, key in names.items()}
    for name in ("layers", "attention"):
        if name in declared and declared[name][1].default is None:
            annotation, field = declared[name]
            text = field.description.replace(LEFT_TO_CONVERT.replace("None", "null"), "")
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
    return functools.reduce(
        operator.or_, (argument for argument in get_args(annotation) if argument is not NoneType)
    )
