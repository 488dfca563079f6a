"""What may not grow unseen: lines and private words of every package, members of a task, options without checks.

``budget.toml`` has the numbers. A change that needs more raises its number in the same commit; one that needs less
lowers it, which the tests ask for where the distance is large.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from probattn.tasks import TASKS
from probattn.tasks.task import Task

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUDGET = tomllib.loads((HERE / "budget.toml").read_text(encoding="utf-8"))
WORDS = frozenset(BUDGET["words"])
ROOM = 1.05
"""A package is at most this far below its budget."""


@cache
def trees() -> dict[str, dict[Path, ast.Module]]:
    """Syntax trees of the library by package; files beside the packages are one."""
    packages: dict[str, dict[Path, ast.Module]] = {}
    for top in ("probattn", "models", "inference"):
        for file in sorted((ROOT / top).rglob("*.py")):
            inner = file.relative_to(ROOT / top).parts
            if top == "probattn" and inner[0] in ("models", "inference"):
                continue  # links to the other two
            package = top if top != "probattn" else inner[0] if len(inner) > 1 else "top"
            packages.setdefault(package, {})[file] = ast.parse(file.read_text(encoding="utf-8"))
    return packages


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield name


def test_every_package_has_a_budget() -> None:
    assert set(BUDGET["packages"]) == set(trees())


@pytest.mark.parametrize("package", BUDGET["packages"])
def test_a_package_keeps_its_budget(package: str) -> None:
    files, budget = trees()[package], BUDGET["packages"][package]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    words = sum(name in WORDS for tree in files.values() for name in identifiers(tree))
    assert lines <= budget["lines"], f"{package}: {lines} lines; merge, derive or delete, or raise its budget"
    assert words <= budget["words"], f"{package}: {words} uses of words that name no thing ({sorted(WORDS)})"
    assert budget["lines"] <= ROOM * lines + 10, f"{package}: {lines} lines; lower its budget"
    assert budget["words"] <= ROOM * words + 3, f"{package}: {words} such words; lower its budget"


def test_a_task_has_few_members() -> None:
    members = [name for name in vars(Task) if not name.startswith("_")]
    assert len(members) <= BUDGET["task"]["members"], members


def test_the_ladder_of_tasks_is_short() -> None:
    levels = {task.__name__: task.__mro__.index(Task) for task in TASKS}
    assert max(levels.values()) <= BUDGET["task"]["levels"], levels


def test_every_class_of_options_checks_them() -> None:
    unchecked = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for files in trees().values()
        for file, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options") and not node.bases
    ]
    assert unchecked == ["probattn/options.py: Options"]


def test_no_one_asks_which_task_it_has() -> None:
    """Other packages ask a task what it can, not which it is."""
    tasks = {task.__name__ for task in TASKS} | {"Task", "ProgramTask", "HeadTask"}
    asking = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for files in trees().values()
        for file, tree in files.items()
        if "tasks/" not in str(file.relative_to(ROOT))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "isinstance"
        and len(node.args) == 2
        and getattr(node.args[1], "id", "") in tasks
    ]
    assert not asking
