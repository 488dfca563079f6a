"""YAML as recipes use it: plain values that know their lines.

The scalars are those of YAML 1.2: ``2e-5`` is a number and ``no`` is text, both of which YAML 1.1 has the other way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from probattn.checks import shown
from probattn.data.errors import DataError, suggestion
from probattn.data.files import read_text
from probattn.tasks.errors import RecipeError

SUFFIXES = (".yaml", ".yml")
KeyPath = tuple[str | int, ...]
Positions = dict[KeyPath, str]
"""Where each key stands, in words: "line 12"."""

_FLOAT = re.compile(
    r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
_FORBIDDEN = re.compile(r"[\x00\ud800-\udfff]")
"""What an escape can write and no file holds: the character 0, and halves of surrogate pairs."""
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
_SCALARS = (
    ("tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), "-+0123456789"),
    ("tag:yaml.org,2002:float", _FLOAT, "-+0123456789."),
)


def recipe_text(where: str, built_in: Mapping[str, Path]) -> str:
    """The text of a recipe: of a file, or of a built-in one by its name; ``RecipeError`` if there is no such recipe."""
    if where.endswith(SUFFIXES):
        path = Path(where).expanduser()
        try:
            return read_text(path)
        except DataError as error:
            raise RecipeError(where, [str(error).removeprefix(f"{path}").lstrip(": ")]) from None
    names = sorted(built_in)
    if where not in built_in:
        expected = (
            f"expected a file that ends in {' or '.join(SUFFIXES)}, or a recipe that comes with the library"
        )
        raise RecipeError(where, [f"{expected} ({', '.join(names)}){suggestion(where, names)}"])
    return built_in[where].read_text(encoding="utf-8")


class RecipeLoader(yaml.SafeLoader):
    """Reads the scalars of YAML 1.2 and no aliases."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Composes a node, refusing aliases: a recipe says everything where it stands."""
        if self.check_event(AliasEvent):
            event = self.peek_event()
            message = f"aliases (*{event.anchor}) are not used in recipes"
            raise yaml.MarkedYAMLError(problem=message, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class RecipeDumper(yaml.SafeDumper):
    """Writes what both versions of YAML read alike, quoting text that either would take for something else."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents lists below their key."""
        super().increase_indent(flow, False)


def _text(dumper: RecipeDumper, value: str) -> ScalarNode:
    """Text, in double quotes with escapes where a sign of it is a line break or cannot be seen."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


RecipeDumper.add_representer(str, _text)


def one_line_yaml(value: Any) -> str:
    """A value in the one-line form of YAML."""
    text: str = yaml.dump(
        value, Dumper=RecipeDumper, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False
    )
    return text.removesuffix("...\n").strip()


RecipeLoader.yaml_implicit_resolvers = {}  # none of YAML 1.1
for _tag, _pattern, _first in _SCALARS:
    RecipeLoader.add_implicit_resolver(_tag, _pattern, list(_first))
    RecipeDumper.add_implicit_resolver(_tag, _pattern, list(_first))


def _whole_number(_: RecipeLoader, node: ScalarNode) -> int:
    try:
        return int(node.value)
    except ValueError:
        raise yaml.MarkedYAMLError(
            problem="a number of too many digits", problem_mark=node.start_mark
        ) from None


RecipeLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_composed = lru_cache(256)(lambda text: RecipeLoader(text).get_single_node())
"""The nodes of a text, which nothing changes: the recipe of a run is read many times."""


def parse(text: str, where: str) -> tuple[dict[str, Any], Positions]:
    r"""Reads a mapping and the lines of its keys; ``RecipeError`` for text that is no YAML or has a key twice."""
    try:
        node = _composed(text)
        if node is None:
            raise RecipeError(where, ["expected keys and values, got none"])
        if not isinstance(node, MappingNode):
            raise RecipeError(where, [f"expected keys and values (line {_line(node)}), got no mapping"])
        positions: Positions = {}
        value = _value(RecipeLoader(""), node, (), positions, where)
    except yaml.YAMLError as error:
        raise RecipeError(where, [_syntax(error, text)]) from None
    except RecursionError:
        raise RecipeError(where, ["expected a recipe, got hundreds of levels"]) from None
    return value, positions


def parse_value(text: str) -> Any:
    """One value as YAML has it: ``2e-5``, ``null``, ``[0, 1]``, or text; ``RecipeError`` for text that is no YAML."""
    content, _ = parse(f"value: {text}", "value")
    if len(content) != 1:
        raise RecipeError("value", ["expected one value, got several lines"])
    return content["value"]


def _value(loader: RecipeLoader, node: Node, path: KeyPath, positions: Positions, where: str) -> Any:
    if node.tag not in _TAGS:
        message = f"tags ({node.tag}) are not used in recipes"
        raise yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)
    if isinstance(node, MappingNode):
        return _mapping(loader, node, path, positions, where)
    if isinstance(node, SequenceNode):
        return [
            _value(loader, item, (*path, number), positions, where) for number, item in enumerate(node.value)
        ]
    _check_scalar(node)
    return loader.construct_object(node)


def _check_scalar(node: Node) -> None:
    """Refuses a tag that its text does not fit, and characters that neither files nor their names can hold."""
    text = str(node.value)
    pattern = next((pattern for tag, pattern, _ in _SCALARS if tag == node.tag), None)
    if pattern is not None and not pattern.fullmatch(text):
        kind = node.tag.rpartition(":")[2]
        raise yaml.MarkedYAMLError(
            problem=f"expected a value of the tag !!{kind}, got {shown(text)}", problem_mark=node.start_mark
        )
    _check_characters(node)


def _check_characters(node: Node) -> None:
    forbidden = _FORBIDDEN.search(str(node.value))
    if forbidden:
        raise yaml.MarkedYAMLError(
            problem=f"a character U+{ord(forbidden[0]):04X} that is not allowed", problem_mark=node.start_mark
        )


def _mapping(
    loader: RecipeLoader, node: MappingNode, path: KeyPath, positions: Positions, where: str
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise RecipeError(where, [f"expected a name as key (line {_line(key)}), got a list or mapping"])
        _check_characters(key)
        name = str(key.value)
        if name in values:
            first = positions[(*path, name)]
            raise RecipeError(where, [f"key {shown(name)} stands twice: {first} and line {_line(key)}"])
        positions[(*path, name)] = f"line {_line(key)}"
        values[name] = _value(loader, value, (*path, name), positions, where)
    return values


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return (
            f"not valid YAML (line {line}): a character U+{ord(text[error.position]):04X} that is not allowed"
        )
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        message = ", ".join(sentence for sentence in (error.context, error.problem) if sentence)
        mark = error.problem_mark
        return f"not valid YAML (line {mark.line + 1}, column {mark.column + 1}): {message}"
    return f"not valid YAML: {error}"
