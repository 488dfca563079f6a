"""Recipes that come with the library: their files, and the table of them."""

from __future__ import annotations

from pathlib import Path

from probattn.cli.options import first_sentence
from probattn.terminal import Group, Sheet


def recipe_files() -> dict[str, Path]:
    """Files of built-in recipes by name, found without the tasks."""
    tasks = Path(__file__).parent.with_name("tasks")
    return {file.stem: file for file in tasks.glob("*/recipes/*.yaml")}


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
    """Recipes that come with the library, by task, that with the most first."""
    tasks: dict[str, list[tuple[str, str]]] = {}
    for name, file in sorted(recipe_files().items()):
        summary = first_sentence(heading_comment(file.read_text(encoding="utf-8")))
        tasks.setdefault(file.parent.parent.name.replace("_", " ").capitalize(), []).append((name, summary))
    return Sheet(
        ("recipe", "purpose"),
        tuple(
            Group(task, tuple(rows)) for task, rows in sorted(tasks.items(), key=lambda item: -len(item[1]))
        ),
        words=2,
        notes=("`probattn init RECIPE` writes one into a file of your own, every key with what it means.",),
    )
