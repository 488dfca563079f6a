"""The words that CONTRIBUTING.md asks not to use are not used: in pages, docstrings, messages and templates."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def refused() -> list[str]:
    """The phrases of the left column of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| not \| but \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert rows is not None
    return [
        phrase.strip()
        for row in rows[1].splitlines()
        for phrase in row.strip("| ").split(" | ")[0].split(",")
    ]


def prose() -> list[Path]:
    """The files that readers meet."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    code = [
        file
        for folder in ("probattn", "models", "inference")
        for ending in ("*.py", "*.html", "*.yaml")
        for file in (ROOT / folder).rglob(ending)
    ]
    return [*pages, *code]


def texts(file: Path) -> list[str]:
    """What is prose in a file: without code of pages, and of modules the strings alone."""
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        nodes = ast.walk(ast.parse(content))
        return [
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return [CODE.sub(" ", content) if file.suffix == ".md" else content]


def found(phrases: list[str], text: str) -> list[str]:
    """The phrases that a text has, however it is broken into lines."""
    flat = " ".join(text.split()).lower()
    return [phrase for phrase in phrases if re.search(rf"\b{re.escape(phrase)}\b", flat)]


def test_it_finds_a_phrase_across_lines_and_leaves_code_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "It takes the\nplace of a network.\n\n```python\nundriven = 1  # surest\n```\nand `surest`.\n"
    )
    assert found(refused(), texts(page)[0]) == ["takes the place of"]
    module = tmp_path / "module.py"
    module.write_text('"""It stands in for a network."""\nundriven = "the surest"\n')
    assert [found(refused(), text) for text in texts(module)] == [["stands in for"], ["surest"]]


def test_no_page_docstring_or_message_has_one() -> None:
    phrases = refused()
    hits = [
        f"{file.relative_to(ROOT)}: {phrase}"
        for file in prose()
        for text in texts(file)
        for phrase in found(phrases, text)
    ]
    if hits:
        pytest.fail("; ".join(sorted(set(hits))))
