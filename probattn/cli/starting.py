"""Recipes to start from, for the columns that a file has; the table of attention methods."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probattn.cli.built_in import heading_comment
from probattn.cli.checking import Checked
from probattn.cli.options import first_sentence
from probattn.files.durable import write_atomically
from probattn.sites import METHODS
from probattn.tasks.classification.recipe import Recipe
from probattn.tasks.errors import RunError
from probattn.tasks.sections.base import absolute, run_name
from probattn.tasks.sections.keys import allowed, entries, section
from probattn.tasks.sections.methods import with_registered
from probattn.tasks.sections.yaml_nodes import RecipeDumper, one_line_yaml
from probattn.terminal import Group, Sheet, printable

WIDTH = 100
"""Columns of a comment."""


BRIEF = {
    "name": "the run's folder is runs/NAME",
    "network.name": "minilm, a folder, or a name on the hub (google-bert/bert-base-uncased)",
    "data.train.source": "",
    "data.train.text": "column of the texts",
    "data.train.text_pair": "column of the second texts",
    "data.train.label": "column of the labels",
    "data.train.label_map": "other spellings of a class, and the usual one",
    "data.out_of_domain": "a file of texts that the network should not answer, without labels; null: none",
    "data.max_length": "tokens; longer texts are truncated",
    "attention.method": "deterministic; babn or bam: a posterior of the attention weights beside it",
    "training.epochs": "passes over the training texts",
    "training.batch_size": "texts of a step",
    "training.learning_rate": "for minilm; encoders of BERT's size take 2e-5 to 5e-5",
    "training.length_pool": "batches from which texts of one length are put together",
}
"""Keys of a short recipe and what they mean; those that are null are left out, but for files to add."""


def recipe_path(source: str, output: Path | None) -> Path:
    """The new file of a recipe; ``RunError`` for one that is there."""
    path = Path(f"{run_name(Path(source).stem)}.yaml") if output is None else output
    if path.suffix not in {".yaml", ".yml"}:
        raise RunError(f"--output {path}: expected a file that ends in .yaml or .yml")
    if path.exists():
        raise RunError(
            f"{path}: expected a new file, it is there already; name another with --output, or remove it"
        )
    return path


def write_recipe(source: str, path: Path, checked: Checked | None, *, full: bool = False) -> list[str]:
    """Writes a recipe for a checked file of texts, or from a recipe, with every key; returns what to say of it."""
    if checked is not None:
        recipe: BaseModel = _recipe_of(source, run_name(path.stem), checked)
        head = f"A recipe for {Path(source).name}: {checked.description}."
    else:
        from probattn.tasks.registry import built_in_recipes, load_any_recipe

        recipe = load_any_recipe(source)
        file = built_in_recipes().get(source, Path(source))
        head = heading_comment(file.read_text(encoding="utf-8"))
        full = True
    content = commented(recipe, head) if full else brief(recipe, [head, FULL])
    write_atomically(path, content.encode())
    lines = [f"recipe: {path}"]
    if checked is not None and checked.spellings:
        lines.append(
            f"note: its label_map joins {len(checked.spellings):,} spellings with others; remove an entry to keep two "
            "classes apart"
        )
    refused = checked is not None and checked.refused
    return [*lines, *([] if refused else [f"next: probattn train {shlex.quote(str(path))}"])]


def _recipe_of(source: str, name: str, checked: Checked) -> Recipe:
    """A recipe for a file of texts and labels."""
    columns = checked.columns
    names = {"text": columns.text, "text_pair": columns.pair, "label": columns.label}
    data = {"train": {"source": absolute(source), **names, "label_map": checked.spellings}}
    # Of the small encoder, which needs larger steps than one of BERT's size; texts of a file differ in length.
    training = {"length_pool": 20, "epochs": 4, "learning_rate": 3e-4}
    content = {"name": name, "data": data, "training": training, "attention": {"method": "deterministic"}}
    return with_registered(Recipe).model_validate(content).resolved()


FULL = "All keys: `probattn init FILE --full`."


def brief(recipe: BaseModel, heads: Sequence[str]) -> str:
    """The keys that are changed most, each with a word on it."""
    lines = [line for head in heads for line in _comment(head, 0)]
    before: tuple[str, ...] = ()
    for path, meaning in BRIEF.items():
        *sections, name = path.split(".")
        value: Any = recipe
        for key in (*sections, name):
            value = getattr(value, key)
        if value in (None, {}) and name != "out_of_domain":
            continue
        shared = [one == other for one, other in zip(sections, before, strict=False)].count(True)
        lines += [f"{'  ' * depth}{sections[depth]}:" for depth in range(shared, len(sections))]
        indent = "  " * len(sections)
        text = f"{indent}{name}:" + ("" if isinstance(value, dict) else f" {one_line_yaml(value)}")
        lines.append(f"{text:<34}  # {meaning}" if meaning else text)
        if isinstance(value, dict):
            block = yaml.dump(value, Dumper=RecipeDumper, allow_unicode=True, width=10**6, sort_keys=False)
            lines += [f"{indent}  {line}" for line in block.splitlines()]
        before = tuple(sections)
    return "\n".join(lines) + "\n"


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
                yield f"{indent}  {one_line_yaml(item)}:"
                yield from _keys(entry, depth + 2, explained=explained and number == 0)
        else:
            if within is not None and explained:
                yield from (f"{indent}#   {line}" for line in _defaults(name, within))
            yield f"{indent}{name}: {one_line_yaml(value)}"


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


def _comment(text: str, depth: int) -> list[str]:
    sign = f"{'  ' * depth}# "
    return textwrap.wrap(
        printable(" ".join(text.replace("`", "").split())),
        WIDTH,
        initial_indent=sign,
        subsequent_indent=sign,
        break_long_words=False,
        break_on_hyphens=False,
    )


def methods_table() -> Sheet:
    """Attention methods, by their section of a recipe."""
    rows = tuple(
        (method.section, method.__name__, first_sentence(inspect.getdoc(method) or "").replace("``", "`"))
        for method in METHODS
    )
    return Sheet(
        ("section of a recipe", "class", "purpose"),
        (Group("", rows),),
        words=3,
        notes=("`probattn init RECIPE` writes the keys of each section, with what they mean.",),
    )
