"""Reading recipes: from a file or by name, with single keys overridden."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.errors import suggestion
from probattn.data.files import read_text
from probattn.recipes.describe import section
from probattn.recipes.errors import RecipeError
from probattn.recipes.experiment import ExperimentRecipe
from probattn.recipes.graph import GraphRecipe
from probattn.recipes.methods import MethodRecipe, with_registered
from probattn.recipes.problems import problems
from probattn.recipes.recipe import Recipe
from probattn.recipes.translation import TranslationRecipe
from probattn.recipes.yaml_nodes import Places, parse, parse_value

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

AnyRecipe = Recipe | GraphRecipe | TranslationRecipe | ExperimentRecipe
"""A recipe of texts, of a graph, of translation or of a synthetic experiment."""

KINDS: dict[str, type[GraphRecipe | TranslationRecipe | ExperimentRecipe]] = {
    "graph": GraphRecipe,
    "translation": TranslationRecipe,
    "experiment": ExperimentRecipe,
}
"""Kinds of recipes by the section that makes them one; without it a recipe is one of texts."""

SUFFIXES = (".yaml", ".yml")
ALTERNATIVES: dict[tuple[str, ...], str] = {("training", "epochs"): "steps", ("training", "steps"): "epochs"}
"""Keys that an override drops, because it says the same in another way."""


def recipe_names(folder: Traversable | None = None) -> tuple[str, ...]:
    """Names of the recipes that come with the library.

    Args:
        folder: where recipes are kept; by default the library's own.

    Returns:
        The names, sorted.
    """
    entries = [Path(entry.name) for entry in (folder or _own_folder()).iterdir()]
    return tuple(sorted(entry.stem for entry in entries if entry.suffix in SUFFIXES))


def load_recipe(
    path_or_name: str | Path, overrides: Sequence[str] = (), *, folder: Traversable | None = None
) -> Recipe:
    """Reads a recipe of texts and checks all of it; :func:`load_any_recipe` takes those of other kinds too.

    Paths in it that are relative are relative to the current folder and come out absolute.

    Args:
        path_or_name: a file that ends in .yaml or .yml, or the name of a recipe that comes with the library.
        overrides: keys to replace, as ``training.learning_rate=1e-4``; the values are YAML. Giving one of
            ``training.epochs`` and ``training.steps`` drops the other.
        folder: where named recipes are kept; by default the library's own.

    Returns:
        The recipe, every key filled in.

    Raises:
        RecipeError: no such recipe, or what is wrong with it, in one line.

    Example:
        >>> load_recipe("sentiment_babn", ["training.steps=100"]).training.steps
        100
    """
    return _of_texts(load_any_recipe(path_or_name, overrides, folder=folder), str(path_or_name))


def load_any_recipe(
    path_or_name: str | Path, overrides: Sequence[str] = (), *, folder: Traversable | None = None
) -> AnyRecipe:
    """Reads a recipe of any kind and checks all of it.

    A section ``graph`` makes it one of a graph, a section ``translation`` one of translation, a section ``experiment``
    one of a synthetic experiment; others are of texts.

    Args:
        path_or_name: a file that ends in .yaml or .yml, or the name of a recipe that comes with the library.
        overrides: keys to replace, as ``training.learning_rate=1e-4``; the values are YAML.
        folder: where named recipes are kept; by default the library's own.

    Returns:
        The recipe, every key filled in, paths absolute.

    Raises:
        RecipeError: no such recipe, or what is wrong with it, in one line.

    Example:
        >>> load_any_recipe("cora_ct", ["graph.name=citeseer"]).graph.name
        'citeseer'
    """
    where = str(path_or_name)
    if where.endswith(SUFFIXES):
        path = Path(where).expanduser()
        try:
            text = read_text(path)
        except DataError as error:
            raise RecipeError(where, [str(error).removeprefix(f"{path}").lstrip(": ")]) from None
        return _read(text, where, overrides, path.stem).resolved()
    folder = folder or _own_folder()
    names = recipe_names(folder)
    if where not in names:
        said = (
            f"expected a file that ends in {' or '.join(SUFFIXES)}, or a recipe that comes with the library"
        )
        raise RecipeError(where, [f"{said} ({', '.join(names)}){suggestion(where, names)}"])
    text = folder.joinpath(f"{where}.yaml").read_text(encoding="utf-8")
    return _read(text, where, overrides, where).resolved()


def read_recipe(
    text: str, where: str = "recipe", overrides: Sequence[str] = (), *, name: str | None = None
) -> Recipe:
    r"""Makes a recipe of texts from YAML.

    Args:
        text: the YAML.
        where: what it is, for messages.
        overrides: keys to replace, as ``training.learning_rate=1e-4``.
        name: the run's name where the text gives none.

    Returns:
        The recipe, every key filled in; relative paths stay as they are.

    Raises:
        RecipeError: what is wrong with it, in one line.

    Example:
        >>> text = "data: {train: my.csv}\ntraining: {lerning_rate: 1}"
        >>> try:
        ...     read_recipe(text)
        ... except RecipeError as error:
        ...     print(error)
        recipe: unknown key 'lerning_rate' in training (line 2); did you mean 'learning_rate'?
    """
    return _of_texts(_read(text, where, overrides, name), where)


def _of_texts(recipe: AnyRecipe, where: str) -> Recipe:
    if not isinstance(recipe, Recipe):
        name = next(name for name, kind in KINDS.items() if isinstance(recipe, kind))
        raise RecipeError(where, [f"expected a recipe of texts, got one with a section {name!r}"])
    return recipe


def _read(text: str, where: str, overrides: Sequence[str], name: str | None) -> AnyRecipe:
    content, places = parse(text, where)
    for override in overrides:
        _override(content, places, override, where)
    if name is not None:
        content.setdefault("name", re.sub(r"[^\w .-]", "-", name).lstrip(" .-_") or "run")
    kind: type[AnyRecipe] = next((KINDS[name] for name in KINDS if name in content), Recipe)
    if issubclass(kind, MethodRecipe):
        kind = with_registered(kind)
    try:
        return kind.model_validate(_without_empty_sections(content, kind))
    except ValidationError as error:
        raise RecipeError(where, problems(error, kind, places)) from None


def _without_empty_sections(content: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Leaves out sections of which only the name stands there."""
    fields = kind.model_fields
    return {
        key: value
        for key, value in content.items()
        if not (value is None and key in fields and section(fields[key].annotation) is not None)
    }


def _own_folder() -> Traversable:
    """The recipes lie among the files of ``probattn.models``; they are read as data, and it is not imported."""
    return files("probattn").joinpath("models", "recipes")


def _override(content: dict[str, Any], places: Places, override: str, where: str) -> None:
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
            held = ".".join(names[: depth + 1])
            raise RecipeError(
                where, [f"override {override!r}: expected a section in {held}, got {shown(inner)}"]
            )
        here[name] = inner = dict(inner or {})
        here = inner
    here[names[-1]] = value
    if value is not None:
        here.pop(ALTERNATIVES.get(names, ""), None)
    for path in [path for path in places if path[: len(names)] == names]:
        del places[path]
    places[names] = f"override {override}"
