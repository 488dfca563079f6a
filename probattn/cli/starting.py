"""Recipes to start from, every key with what it means, and tables of recipes and of attention methods."""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probattn.cli.options import first_sentence
from probattn.cli.recognising import Recognised, recognise
from probattn.cli.rows import ENDINGS
from probattn.files.durable import write_atomically
from probattn.recipes import Recipe
from probattn.report import Group, Sheet
from probattn.sites import METHODS
from probattn.tasks.errors import RunError
from probattn.tasks.registry import built_in_recipes, load_any_recipe, load_task
from probattn.tasks.sections.base import absolute, run_name
from probattn.tasks.sections.keys import allowed, entries, section
from probattn.tasks.sections.methods import with_registered
from probattn.tasks.sections.yaml_nodes import RecipeDumper

WIDTH = 100
"""Columns of a comment."""


def write_recipe(
    source: str, output: Path | None, text: str | None, label: str | None, pair: str | None
) -> list[str]:
    """Writes a commented recipe, from a recipe or a file of texts; returns what to say of it, line by line."""
    path = Path(f"{run_name(Path(source).stem)}.yaml") if output is None else output
    if path.suffix not in {".yaml", ".yml"}:
        raise RunError(f"--output {path}: expected a file that ends in .yaml or .yml")
    if path.exists():
        raise RunError(
            f"{path}: expected a new file, it is there already; name another with --output, or remove it"
        )
    lines, trainable = [], True
    if Path(source).suffix.lower() in ENDINGS:
        columns = recognise(source, text, label, pair)
        recipe: BaseModel = _recipe_of(source, run_name(path.stem), columns)
        head, trainable = f"A recipe for {Path(source).name}: {columns.description}.", columns.trainable
        lines = [f"recognised: {columns.description}", *(f"note: {line}" for line in columns.remarks)]
    else:
        recipe = load_any_recipe(source)
        file = built_in_recipes().get(source, Path(source))
        head = heading_comment(file.read_text(encoding="utf-8"))
    write_atomically(path, commented(recipe, head).encode())
    command = [f"next: probattn train {shlex.quote(str(path))}"] if trainable else []
    return [*lines, f"recipe: {path}", *command]


def _recipe_of(source: str, name: str, columns: Recognised) -> Recipe:
    """A recipe for a file of texts and labels."""
    data = {
        "train": {
            "source": absolute(source),
            "text": columns.text,
            "text_pair": columns.pair,
            "label": columns.label,
        }
    }
    training = {"length_pool": 20}  # texts of a file differ in length
    return (
        with_registered(Recipe).model_validate({"name": name, "data": data, "training": training}).resolved()
    )


def commented(recipe: BaseModel, head: str) -> str:
    """A recipe as YAML with every key, each under what it takes and means."""
    return "\n".join([*_comment(head, 0), "", *_keys(recipe, 0)]) + "\n"


def _keys(model: BaseModel, depth: int, *, explained: bool = True) -> Iterator[str]:
    """Lines of a section; of sections with free names the first alone is explained."""
    indent = "  " * depth
    for index, (name, field) in enumerate(type(model).model_fields.items()):
        value, within = getattr(model, name), section(field.annotation)
        if index and not depth:
            yield ""
        if explained:
            yield from _comment(_meaning(field), depth)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _keys(value, depth + 1, explained=explained)
        elif entries(field.annotation) is not None:
            yield f"{indent}{name}:"
            for number, (item, entry) in enumerate(value.items()):
                yield f"{indent}  {_plain(item)}:"
                yield from _keys(entry, depth + 2, explained=explained and number == 0)
        else:
            if within is not None and explained:
                yield from (f"{indent}#   {line}" for line in _defaults(name, within))
            yield f"{indent}{name}: {_plain(value)}"


def _meaning(field: FieldInfo) -> str:
    """Meaning of a key, and its values where they are not plain."""
    takes, description = allowed(field), field.description or ""
    if section(field.annotation) or entries(field.annotation) or takes in {"text", "text or null"}:
        return description
    return f"{description} Takes {takes}."


def _defaults(name: str, kind: type[BaseModel]) -> list[str]:
    """A section that is left out, as it would be with its defaults; nothing where some keys have none."""
    if any(field.is_required() for field in kind.model_fields.values()):
        return []
    text: str = yaml.dump({name: kind().model_dump()}, Dumper=RecipeDumper, sort_keys=False)
    return text.splitlines()


def _plain(value: Any) -> str:
    """A value in the one-line form of YAML."""
    text: str = yaml.dump(
        value, Dumper=RecipeDumper, default_flow_style=True, allow_unicode=True, width=10**6
    )
    return text.removesuffix("...\n").strip()


def _comment(text: str, depth: int) -> list[str]:
    sign = f"{'  ' * depth}# "
    return textwrap.wrap(
        " ".join(text.replace("`", "").split()),
        WIDTH,
        initial_indent=sign,
        subsequent_indent=sign,
        break_long_words=False,
        break_on_hyphens=False,
    )


def heading_comment(text: str) -> str:
    r"""The comment at the head of a YAML file, without its signs.

    Example:
        >>> heading_comment("# One,\n# two.\ndata: {}  # three")
        'One, two.'
    """
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def recipes_table() -> Sheet:
    """Recipes that come with the library, by task."""
    tasks: dict[str, list[tuple[str, str]]] = {}
    for name, file in sorted(built_in_recipes().items()):
        summary = first_sentence(heading_comment(file.read_text(encoding="utf-8")))
        tasks.setdefault(_task_in_words(type(load_task(name)).__name__), []).append((name, summary))
    return Sheet(
        ("recipe", "what it is for"),
        tuple(Group(task, tuple(rows)) for task, rows in tasks.items()),
        words=2,
        notes=("`probattn init RECIPE` writes one into a file of your own, every key with what it means.",),
    )


def _task_in_words(name: str) -> str:
    """A task by the name of its class: that of ``GraphTextTask`` is "Graph text"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Task")).capitalize()


def methods_table() -> Sheet:
    """Attention methods, by their section of a recipe."""
    rows = tuple(
        (method.section, method.__name__, first_sentence(inspect.getdoc(method) or "").replace("``", "`"))
        for method in METHODS
    )
    return Sheet(
        ("section of a recipe", "class", "what it is for"),
        (Group("", rows),),
        words=3,
        notes=("`probattn init RECIPE` writes the keys of each section, with what they mean.",),
    )
