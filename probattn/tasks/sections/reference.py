"""The page that describes every key of a recipe, made from the descriptions that the keys themselves carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from probattn.tasks.sections.base import RunRecipe
from probattn.tasks.sections.problems import allowed, entries, section
from probattn.tasks.sections.yaml_nodes import RecipeDumper


def reference(kind: type[RunRecipe]) -> str:
    """The page of the documentation that describes every key of recipes of one task.

    Args:
        kind: the recipe's class, whose ``introduction`` begins the page.

    Returns:
        Markdown: a table a section, with what each key takes, its default and its meaning.

    Example:
        >>> from probattn.recipes import Recipe
        >>> reference(Recipe).splitlines()[0]
        '# Recipe reference'
    """
    return "\n".join([kind.introduction, *_section("Keys at the top", kind, "")])


def family_reference(base: type[RunRecipe], kinds: Iterable[type[RunRecipe]]) -> str:
    """The same of recipes that share a base: the base's sections once, and those that each kind adds or changes.

    Args:
        base: the recipes' base class, whose ``introduction`` begins the page.
        kinds: classes of recipes.
    """
    described: set[Any] = set()
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


def _section(
    title: str, model: Any, prefix: str, level: int = 2, seen: set[Any] | None = None
) -> list[str]:
    """Lines about a section; one of ``seen`` within it is referred to, and new ones are added to it."""
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
            lines += [f"`{prefix}{name}`: {field.description} The keys are those above.", ""]
        else:
            shared.setdefault(kind, []).append(name)
    if seen is not None:
        seen.update(shared)
    for kind, names in shared.items():
        heading = ", ".join(f"`{prefix}{name}`" for name in names)
        block = _section(heading, kind, f"{prefix}{names[0]}.", min(level + bool(prefix), 4), seen)
        described = [f"- `{name}`: {inner[name].description}{_optional(inner[name])}" for name in names]
        if len(names) > 1 or inner[names[0]].default is None:
            block[1:1] = ["", *described]
        lines += block
    for name, field in plain.items():
        model_of_entries = entries(field.annotation)
        if model_of_entries is not None:
            lines += _section(
                f"`{prefix}{name}.NAME`", model_of_entries, f"{prefix}{name}.NAME.", min(level + 1, 4)
            )
    return lines


def _optional(field: FieldInfo) -> str:
    return " Must be given." if field.is_required() else ""


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", allowed(field), _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be given"
    text = yaml.dump(value, Dumper=RecipeDumper, default_flow_style=True, width=1000).removesuffix("...\n")
    return f"`{text.strip()}`"


def _about(model: type[BaseModel]) -> str:
    paragraphs = (model.__doc__ or "").strip().split("\n\n")
    summary = (" ".join(paragraph.split()) for paragraph in paragraphs if "Example:" not in paragraph)
    return " ".join(summary).replace("``", "`")
