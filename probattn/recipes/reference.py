"""The page that describes every key of a recipe, made from the descriptions that the keys themselves carry."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from probattn.recipes.describe import allowed, entries, section
from probattn.recipes.experiment import ExperimentRecipe
from probattn.recipes.graph import GraphRecipe
from probattn.recipes.recipe import Recipe
from probattn.recipes.translation import TranslationRecipe
from probattn.recipes.yaml_nodes import RecipeDumper

HEAD = """# Recipe reference

A recipe is a YAML file: `probattn train my.yaml`. Only `data.train` must be given; a section that is left out has its
defaults. An unknown key, a value out of its range or a wrong type is an error that names the line. Numbers and words
are read as YAML 1.2 has them (`2e-5` is a number, `no` is text). Relative paths are relative to the folder in which the
command is run.

`probattn train my.yaml --set training.learning_rate=1e-4` replaces a single key, and so does
[`load_recipe`][probattn.recipes.load_recipe]: `load_recipe("my.yaml", ["training.learning_rate=1e-4"])`.
"""


def recipe_reference() -> str:
    """The page of the documentation that describes every key.

    Returns:
        Markdown: a table a section, with what each key takes, its default and its meaning.

    Example:
        >>> recipe_reference().splitlines()[0]
        '# Recipe reference'
    """
    parts = [HEAD, *_section("Keys at the top", Recipe, "")]
    return "\n".join(parts)


GRAPH_HEAD = """# Recipes of graphs

A recipe with a section `graph` trains a graph attention network on a citation graph; see
[Graph attention](../concepts/graph_attention.md). Only `graph.name` must be given. What is said of
[recipes of texts](reference.md) holds here too: unknown keys are errors, and `--set` replaces single keys.
"""


def graph_recipe_reference() -> str:
    """The page of the documentation that describes every key of a recipe of a graph.

    Returns:
        Markdown, as :func:`recipe_reference` gives it.

    Example:
        >>> graph_recipe_reference().splitlines()[0]
        '# Recipes of graphs'
    """
    return "\n".join([GRAPH_HEAD, *_section("Keys at the top", GraphRecipe, "")])


TRANSLATION_HEAD = """# Recipes of translation

A recipe with a section `translation` trains an encoder-decoder, a Transformer or an LSTM, on parallel text; see
[Translation](../concepts/translation.md). A section without keys, `translation: {}`, takes Multi30k. What is said of
[recipes of texts](reference.md) holds here too: unknown keys are errors, and `--set` replaces single keys.
"""


def translation_recipe_reference() -> str:
    """The page of the documentation that describes every key of a recipe of translation.

    Returns:
        Markdown, as :func:`recipe_reference` gives it.

    Example:
        >>> translation_recipe_reference().splitlines()[0]
        '# Recipes of translation'
    """
    return "\n".join([TRANSLATION_HEAD, *_section("Keys at the top", TranslationRecipe, "")])


EXPERIMENT_HEAD = """# Recipes of experiments

A recipe with a section `experiment` trains small models on synthetic tasks, each condition from many seeds; see
[Copying](../concepts/copying.md). Only `experiment.conditions` must be given. What is said of
[recipes of texts](reference.md) holds here too: unknown keys are errors, and `--set` replaces single keys
(`--set experiment.conditions.NAME.types=50`).
"""


def experiment_recipe_reference() -> str:
    """The page of the documentation that describes every key of a recipe of an experiment.

    Returns:
        Markdown, as :func:`recipe_reference` gives it.

    Example:
        >>> experiment_recipe_reference().splitlines()[0]
        '# Recipes of experiments'
    """
    return "\n".join([EXPERIMENT_HEAD, *_section("Keys at the top", ExperimentRecipe, "")])


def _section(title: str, model: type[BaseModel], prefix: str, level: int = 2) -> list[str]:
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
        found = section(field.annotation)
        assert found is not None
        shared.setdefault(found, []).append(name)
    for found, names in shared.items():
        heading = ", ".join(f"`{prefix}{name}`" for name in names)
        block = _section(heading, found, f"{prefix}{names[0]}.", min(level + bool(prefix), 4))
        described = [f"- `{name}`: {inner[name].description}{_optional(inner[name])}" for name in names]
        if len(names) > 1 or inner[names[0]].default is None:
            block[1:1] = ["", *described]
        lines += block
    for name, field in plain.items():
        held = entries(field.annotation)
        if held is not None:
            lines += _section(f"`{prefix}{name}.NAME`", held, f"{prefix}{name}.NAME.", min(level + 1, 4))
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
    kept = (" ".join(paragraph.split()) for paragraph in paragraphs if "Example:" not in paragraph)
    return " ".join(kept).replace("``", "`")
