"""The words that CONTRIBUTING.md asks not to use are not used, and proselint finds nothing in the pages."""

from __future__ import annotations

import ast
import re
from itertools import count
from pathlib import Path

import pytest
from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
MARKUP = re.compile(r"\$\$.*?\$\$|\$[^$\n]*\$|<[^>]*>|^\|.*\|$", re.DOTALL | re.MULTILINE)
PREFERRED = ("salience", "antithetical")
"""What proselint would call saliency and antithetic draws."""


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
    return [phrase for phrase in phrases if phrase in flat and re.search(rf"\b{re.escape(phrase)}\b", flat)]


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


def findings(page: str) -> list[str]:
    """What proselint says of a page's prose, typography apart: code and formulas are names of their own."""
    names = count()
    for pattern in (CODE, MARKUP):
        page = pattern.sub(lambda _: f" name{next(names)} ", page)
    checks = DEFAULT["checks"] | {"typography": False}
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(__register__)
    results = [each.check_result for each in LintFile("page", page).lint({**DEFAULT, "checks": checks})]
    spoken = [(page[slice(*each.span)], each.message) for each in results]
    return [
        message
        for words, message in spoken
        if "\n\n" not in words.strip() and not any(word in message for word in PREFERRED)
    ]


def test_proselint_finds_what_is_wrong_and_leaves_code_alone() -> None:
    assert findings("The net is very unique.\n\nIt uses `of of` and $x x$ and `a` and `b`.\n")
    assert not findings("The net is small.\n\nIt uses `of of` and $x x$ and `a` and `b`.\n")


@pytest.mark.parametrize(
    "page", [file for file in prose() if file.suffix == ".md"], ids=lambda file: file.stem
)
def test_proselint_finds_nothing_in_a_page(page: Path) -> None:
    assert findings(page.read_text(encoding="utf-8")) == []
