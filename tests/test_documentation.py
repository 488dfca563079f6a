"""The examples of the README and the documentation run, and print what the pages say."""

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pyro
import pytest
import torch

from probattn import compile_sites
from probattn.recipes import load_any_recipe

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(?P<kind>python|text)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
WITHIN = re.compile(r"<!-- within (?P<tolerance>[\d.]+) -->")
DECIMAL = re.compile(r"-?\d+\.\d+")
RECIPE = re.compile(r"^```yaml\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW = (
    *("costs", "extending", "graph_attention", "graph_text", "particles", "plain_loop", "posterior"),
    *("pretraining", "sklearn", "trainer", "translation", "visual_questions"),
)
"""Pages that train for more than two seconds, beside the tutorials."""
OUTPUT_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Example(NamedTuple):
    """Code of a page, what the text block right below it says that the code prints, and how near its decimals are."""

    line: int
    code: str
    expected: str | None = None
    tolerance: float = 0.0


def examples(text: str) -> list[Example]:
    found: list[Example] = []
    end = 0
    for match in FENCE.finditer(text):
        between = text[end : match.start()].strip()
        within = WITHIN.fullmatch(between)
        if match["kind"] == "python":
            found.append(Example(text.count("\n", 0, match.start()) + 2, match["body"]))
        elif found and (within or between == "") and found[-1].expected is None:
            tolerance = float(within["tolerance"]) if within else 0.0
            found[-1] = found[-1]._replace(expected=match["body"], tolerance=tolerance)
        end = match.end()
    return found


def agrees(expected: str, printed: str, tolerance: float) -> bool:
    """Whether texts are the same, up to ``tolerance`` in numbers with a decimal point."""
    if doctest.OutputChecker().check_output(expected, printed, OUTPUT_OPTIONS):
        return True
    first, second = (DECIMAL.findall(text) for text in (expected, printed))
    words = (DECIMAL.sub("#", text).split() for text in (expected, printed))
    return (
        len(set(map(tuple, words))) == 1
        and len(first) == len(second)
        and all(abs(float(a) - float(b)) <= tolerance for a, b in zip(first, second, strict=True))
    )


def run(page: str, text: str) -> None:
    """Runs a page's examples in one namespace, from the first to the last."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code, expected, tolerance in examples(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + code, page, "exec"), namespace)
        if expected is not None:
            fits = agrees(expected, printed.getvalue(), tolerance)
            assert fits, f"{page}:{line}: expected\n{expected}\ngot\n{printed.getvalue()}"


def packages() -> list[str]:
    """The packages that export names."""
    found = [
        path.parent.name
        for path in (ROOT / "probattn").glob("*/__init__.py")
        if "__all__" in path.read_text()
    ]
    return sorted(found)


def recipes() -> list[tuple[str, str]]:
    """Page and text of every recipe that a page shows."""
    found = [
        (path.name, match["body"])
        for path in (ROOT / "docs").rglob("*.md")
        for match in RECIPE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found
    return found


@pytest.mark.parametrize(("page", "text"), recipes(), ids=[page for page, _ in recipes()])
def test_a_recipe_that_a_page_shows_is_one(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"{Path(page).stem}.yaml"
    file.write_text(text, encoding="utf-8")
    assert load_any_recipe(str(file)).name == file.stem


def methods() -> list[str]:
    """Pages of methods and models, as the navigation of the site has them."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    own = nav[nav.index("  - Methods:") : nav.index("  - Results:")]
    return re.findall(r"concepts/(\w+)\.md", own)


@pytest.mark.parametrize("name", methods())
def test_pages_of_methods_and_models_have_the_same_headings(name: str) -> None:
    page = (ROOT / "docs" / "concepts" / f"{name}.md").read_text(encoding="utf-8")
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^## (.*)$", code.sub("", page), re.MULTILINE)
    assert sorted(headings) == ["Formula", "Idea", "Options", "Use", "What was measured"]
    assert (headings[0], headings[-1]) == ("Idea", "What was measured")


@pytest.mark.parametrize("name", packages())
def test_every_package_has_a_page(name: str) -> None:
    page = f"api/{name}.md"
    assert f"::: probattn.{name}\n" in (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"probattn.{name}: {page}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["inference", "models", "sites"])
def test_a_page_in_groups_has_every_public_name_once(name: str) -> None:
    page = (ROOT / "docs" / "api" / f"{name}.md").read_text(encoding="utf-8")
    listed = re.findall(rf"^::: probattn\.{name}\.(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(importlib.import_module(f"probattn.{name}").__all__)


def pages() -> list[object]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        pytest.param(
            path,
            id=path.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.lightning, pytest.mark.filterwarnings("ignore")]
            if path.name == "lightning.md"
            else [pytest.mark.slow, pytest.mark.ci] * (path.parent.name == "tutorials" or path.stem in SLOW),
        )
        for path in paths
        if examples(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("path", pages())
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pyro.clear_param_store()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        with torch.random.fork_rng():
            run(path.name, path.read_text(encoding="utf-8"))
    finally:
        compile_sites(False)  # which a page turns on for its process


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", AssertionError),
        ("```python\nx = 1\n```\n\nand\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("```python\nimport no_such_module\n```\n", ModuleNotFoundError),
        ("```python\nprint(0.25)\n```\n\n<!-- within 0.1 -->\n\n```text\n0.40\n```\n", AssertionError),
        ("```python\nprint('a 0.25')\n```\n\n<!-- within 0.1 -->\n\n```text\nb 0.30\n```\n", AssertionError),
        ("```python\nprint(25)\n```\n\n<!-- within 9 -->\n\n```text\n26\n```\n", AssertionError),
    ],
)
def test_a_wrong_example_is_found(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run("page.md", text)


def test_output_belongs_to_the_code_right_above_it() -> None:
    run("page.md", "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n")
    run("page.md", "```python\nprint(1 + 1)\n```\n\na diagram:\n\n```text\nsomething else\n```\n")


def test_decimals_are_compared_within_what_a_comment_says() -> None:
    run("page.md", "```python\nprint('a', 0.25, 3)\n```\n\n<!-- within 0.1 -->\n\n```text\na 0.30 3\n```\n")
