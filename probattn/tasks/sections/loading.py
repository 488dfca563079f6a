"""Reading recipes: from a file or by name, with single keys overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.errors import suggestion
from probattn.data.files import read_text
from probattn.tasks.errors import RecipeError
from probattn.tasks.sections.base import RunRecipe, run_name
from probattn.tasks.sections.keys import problems, section
from probattn.tasks.sections.methods import MethodRecipe, with_registered
from probattn.tasks.sections.yaml_nodes import Positions, parse, parse_value

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

KindOf = Callable[[Mapping[str, Any]], type[RunRecipe]]
"""Gives a recipe's class by the keys that stand in it."""

SUFFIXES = (".yaml", ".yml")
ALTERNATIVES: dict[tuple[str, ...], str] = {("training", "epochs"): "steps", ("training", "steps"): "epochs"}
"""Keys that an override drops, because it says the same in another way."""


def load(
    path_or_name: str | Path, overrides: Sequence[str], kind: KindOf, built_in: Mapping[str, Traversable]
) -> Any:
    """Reads a recipe from a file that ends in .yaml or .yml, or a built-in one by its name, and checks all of it.

    Args:
        path_or_name: see above.
        overrides: keys to replace, as ``training.learning_rate=1e-4``; the values are YAML.
        kind: the recipe's class, by what stands in it.
        built_in: files by name.

    Returns:
        The recipe, every key filled in, paths absolute.

    Raises:
        RecipeError: no such recipe, or what is wrong with it, in one line.
    """
    where = str(path_or_name)
    if where.endswith(SUFFIXES):
        path = Path(where).expanduser()
        try:
            text = read_text(path)
        except DataError as error:
            raise RecipeError(where, [str(error).removeprefix(f"{path}").lstrip(": ")]) from None
        return read(text, where, overrides, kind, name=path.stem).resolved()
    names = sorted(built_in)
    if where not in built_in:
        expected = (
            f"expected a file that ends in {' or '.join(SUFFIXES)}, or a recipe that comes with the library"
        )
        raise RecipeError(where, [f"{expected} ({', '.join(names)}){suggestion(where, names)}"])
    return read(built_in[where].read_text(encoding="utf-8"), where, overrides, kind, name=where).resolved()


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
