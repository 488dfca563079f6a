"""Tables of recipes and of attention methods."""

from __future__ import annotations

import inspect
import re

from probattn.cli.options import first_sentence
from probattn.report import Group, Sheet
from probattn.sites import METHODS
from probattn.tasks.registry import built_in_recipes, load_task


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
