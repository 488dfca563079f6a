"""Recipes, read from a file or by name with single keys overridden; what is wrong with a key; the page of all keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from probattn.checks import shown
from probattn.data.errors import nearest
from probattn.options import RECIPE, expected
from probattn.tasks.errors import RecipeError
from probattn.tasks.sections.base import RunRecipe, run_name
from probattn.tasks.sections.methods import MethodRecipe, with_registered
from probattn.tasks.sections.yaml_nodes import (
    SUFFIXES,
    KeyPath,
    Positions,
    one_line_yaml,
    parse,
    parse_value,
    recipe_text,
)


def allowed(field: FieldInfo) -> str:
    """The values that a key takes, in words."""
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
    """The section that every entry of a mapping of names holds; None for other keys."""
    return section(get_args(annotation)[1]) if get_origin(annotation) is dict else None


ONLY_MISPLACED = 3
"""Sections named, at most, for a key that stands in the wrong one."""
TITLE = 10
"""Words of a description, with its key, that say no more than the heading of the section."""


def problems(error: ValidationError, model: type[BaseModel], positions: Positions) -> list[str]:
    """One sentence for every key that is wrong, in the order of the model's keys; ``positions`` are their lines."""
    messages: dict[tuple[KeyPath, str], str] = {}
    for details in error.errors(include_url=False):
        path, field, _ = _field(model, details["loc"])
        kind = details["type"]
        key = (path, kind if kind in ("extra_forbidden", "missing", "value_error") else "value")
        messages.setdefault(key, _sentence(details, path, field, model, positions))
    return list(messages.values())


def _sentence(
    details: ErrorDetails,
    path: KeyPath,
    field: FieldInfo | None,
    model: type[BaseModel],
    positions: Positions,
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


def _unknown(path: KeyPath, model: type[BaseModel], positions: Positions) -> str:
    name = str(path[-1])
    message = f"unknown key {name!r}{_inside(path)}{_place(path, positions)}"
    _, _, here = _field(model, path[:-1])
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


def _field(
    model: type[BaseModel], loc: tuple[str | int, ...]
) -> tuple[KeyPath, FieldInfo | None, type[BaseModel] | None]:
    """The key that an error is about, without what pydantic adds for members of unions, and the section it holds."""
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
    return path, field, here


def _inside(path: KeyPath) -> str:
    return f" in {_dotted(path[:-1])}" if len(path) > 1 else ""


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path)) or "recipe"


def _place(path: KeyPath, positions: Positions) -> str:
    """The place of a key or, where it is not written, of the section around it."""
    while path and path not in positions:
        path = path[:-1]
    return f" ({positions[path]})" if path else ""


def reference(kind: type[RunRecipe]) -> str:
    """The page, in Markdown, that describes every key of a class of recipes, after its ``introduction``."""
    return "\n".join([kind.introduction, *_section("Keys at the top", kind, "")])


def family_reference(base: type[RunRecipe], kinds: Iterable[type[RunRecipe]]) -> str:
    """The page of recipes that share a base: its sections once, and those that each kind adds or changes."""
    described: dict[Any, str] = {}
    lines = [base.introduction]
    shared = dict(base.model_fields)
    for kind in kinds:
        names = [
            name
            for name, field in kind.model_fields.items()
            if section(field.annotation) is not None
            and (name not in shared or shared[name].annotation is not field.annotation)
        ]
        for name in sorted(names, key=lambda name: name in shared):
            model = section(kind.model_fields[name].annotation)
            level = 2 + (name in shared)
            lines += _section(f"`{name}`", model, f"{name}.", level, described)
    for name in ("network", "report"):
        lines += _section(f"`{name}`", base.model_fields[name].annotation, f"{name}.", 2, described)
    return "\n".join(lines)


def _section(title: str, model: Any, prefix: str, level: int = 2, seen: Any = None) -> list[str]:
    """Lines about a section; one of ``seen`` within it is referred to by its name, and new ones are added."""
    lines = [f"{'#' * level} {title}", ""]
    plain = {name: field for name, field in model.model_fields.items() if section(field.annotation) is None}
    inner = {name: field for name, field in model.model_fields.items() if name not in plain}
    if prefix:
        lines += [_about(model), ""]
    if plain:
        lines += ["| key | takes | default | meaning |", "|---|---|---|---|"]
        lines += [_row(name, field) for name, field in plain.items()]
        lines.append("")
    shared: dict[type[BaseModel], list[str]] = {}
    for name, field in inner.items():
        kind = section(field.annotation)
        assert kind is not None
        if seen is not None and kind in seen:
            lines += [f"`{prefix}{name}`: {field.description} Its keys: see `{seen[kind]}` above.", ""]
        else:
            shared.setdefault(kind, []).append(name)
    if seen is not None:
        seen.update({kind: f"{prefix}{names[0]}" for kind, names in shared.items()})
    for kind, names in shared.items():
        heading = ", ".join(f"`{prefix}{name}`" for name in names)
        block = _section(heading, kind, f"{prefix}{names[0]}.", min(level + bool(prefix), 4), seen)
        required = {name: " Must be given." if inner[name].is_required() else "" for name in names}
        described = [f"- `{name}`: {inner[name].description}{required[name]}" for name in names]
        if len(names) > 1 or inner[names[0]].default is None or len(described[0].split()) > TITLE:
            block[1:1] = ["", *described]
        lines += block
    for name, field in plain.items():
        model_of_entries = entries(field.annotation)
        if model_of_entries is not None:
            lines += _section(
                f"`{prefix}{name}.NAME`", model_of_entries, f"{prefix}{name}.NAME.", min(level + 1, 4)
            )
    return lines


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", allowed(field), _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be given"
    return f"`{one_line_yaml(value)}`"


def _about(model: type[BaseModel]) -> str:
    paragraphs = (model.__doc__ or "").strip().split("\n\n")
    summary = (" ".join(paragraph.split()) for paragraph in paragraphs if "Example:" not in paragraph)
    return " ".join(summary).replace("``", "`")


KindOf = Callable[[Mapping[str, Any]], type[RunRecipe]]
"""Gives a recipe's class by the keys that stand in it."""

ALTERNATIVES: dict[tuple[str, ...], str] = {("training", "epochs"): "steps", ("training", "steps"): "epochs"}
"""Keys that an override drops, because it says the same in another way."""


def load(
    path_or_name: str | Path, overrides: Sequence[str], kind: KindOf, built_in: Mapping[str, Path]
) -> Any:
    """Reads a recipe from a file that ends in .yaml or .yml, or a built-in one by its name, and checks all of it.

    Args:
        path_or_name: see above.
        overrides: keys to replace, as ``training.learning_rate=1e-4``; the values are YAML.
        kind: the recipe's class, by what stands in it.
        built_in: files by name.

    Returns:
        The recipe, every key filled in, paths absolute; ``RecipeError``: what is wrong with it, in one line.
    """
    where = str(path_or_name)
    name = Path(where).stem if where.endswith(SUFFIXES) else where
    return read(recipe_text(where, built_in), where, overrides, kind, name=name).resolved()


def read(text: str, where: str, overrides: Sequence[str], kind: KindOf, *, name: str | None = None) -> Any:
    """Makes a recipe from YAML; arguments as for :func:`load`, and the run's name where the text gives none."""
    content, positions = parse(text, where)
    for override in overrides:
        _override(content, positions, override, where)
    if name is not None:
        content.setdefault("name", run_name(name))
    cls = kind(content)
    if issubclass(cls, MethodRecipe):
        cls = with_registered(cls)
    empty = {
        key
        for key, field in cls.model_fields.items()
        if content.get(key) is None and section(field.annotation)
    }
    try:
        return cls.model_validate({key: value for key, value in content.items() if key not in empty})
    except ValidationError as error:
        raise RecipeError(where, problems(error, cls, positions)) from None


def _override(content: dict[str, Any], positions: Positions, override: str, where: str) -> None:
    dotted, equals, text = override.partition("=")
    names = tuple(name.strip() for name in dotted.split("."))
    if not equals or not all(names):
        raise RecipeError(where, [f"override {override!r}: expected key=value, such as training.seed=1"])
    try:
        value = parse_value(text)
    except RecipeError as error:
        raise RecipeError(where, [f"override {override!r}: {error.problems[0]}"]) from None
    here = content
    for depth, name in enumerate(names[:-1]):
        inner = here.get(name)
        if isinstance(inner, str) and names[0] == "data" and depth == 1:
            inner = {"source": inner}
        if inner is not None and not isinstance(inner, Mapping):
            parent = ".".join(names[: depth + 1])
            raise RecipeError(
                where, [f"override {override!r}: expected a section in {parent}, got {shown(inner)}"]
            )
        here[name] = inner = dict(inner or {})
        here = inner
    here[names[-1]] = value
    if value is not None:
        here.pop(ALTERNATIVES.get(names, ""), None)
    for path in [path for path in positions if path[: len(names)] == names]:
        del positions[path]
    positions[names] = f"override {override}"
