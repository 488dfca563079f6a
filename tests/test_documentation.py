"""The examples of the README and the documentation run, and print what the pages say."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pyro
import pytest
import torch

from probattn.recipes import load_any_recipe

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(?P<kind>python|text)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPE = re.compile(r"^```yaml\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(text: str) -> list[tuple[int, str, str | None]]:
    """Line, code, and what the text block right below it says that the code prints."""
    found: list[tuple[int, str, str | None]] = []
    end = 0
    for match in FENCE.finditer(text):
        adjacent = bool(found) and text[end : match.start()].strip() == ""
        if match["kind"] == "python":
            found.append((text.count("\n", 0, match.start()) + 2, match["body"], None))
        elif adjacent and found[-1][2] is None:
            found[-1] = (*found[-1][:2], match["body"])
        end = match.end()
    return found


def run(page: str, text: str) -> None:
    """Runs a page's examples in one namespace, from the first to the last."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code, expected in examples(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + code, page, "exec"), namespace)
        if expected is not None:
            fits = doctest.OutputChecker().check_output(expected, printed.getvalue(), OUTPUT_OPTIONS)
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


@pytest.mark.parametrize("name", packages())
def test_every_package_has_a_page(name: str) -> None:
    page = f"api/{name}.md"
    assert f"::: probattn.{name}\n" in (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"probattn.{name}: {page}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def pages() -> list[object]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        pytest.param(
            path,
            id=path.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.lightning, pytest.mark.filterwarnings("ignore")]
            if path.name == "lightning.md"
            else [],
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
    with torch.random.fork_rng():
        run(path.name, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", AssertionError),
        ("```python\nx = 1\n```\n\nand\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("```python\nimport no_such_module\n```\n", ModuleNotFoundError),
    ],
)
def test_a_wrong_example_is_found(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run("page.md", text)


def test_output_belongs_to_the_code_right_above_it() -> None:
    run("page.md", "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n")
    run("page.md", "```python\nprint(1 + 1)\n```\n\na diagram:\n\n```text\nsomething else\n```\n")
