"""Marks of pages become the tables of what was measured."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="concepts/page.md"))


@pytest.fixture
def measured(load) -> ModuleType:
    return load("measured")


def shown(measured: ModuleType, markdown: str, docs: Path) -> str:
    return measured.on_page_markdown(markdown, page=PAGE, config={"docs_dir": str(docs)}, files=None)


def test_every_mark_becomes_the_tables_of_its_file(measured, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        (tmp_path / "data" / f"{name}.json").write_text(f'{{"value": "of {name}"}}')
    tables = SimpleNamespace(SOURCE="make it", tables=lambda content: f"tables {content['value']}")
    monkeypatch.setattr(measured, "TABLES", {"one": tables, "two": tables})
    page = shown(measured, "before\n\n<!-- one -->\n\nbetween\n\n<!-- two -->\n\nafter", tmp_path)
    assert page == "before\n\ntables of one\n\nbetween\n\ntables of two\n\nafter"


def test_a_page_says_that_its_figures_are_not_there(measured, tmp_path):
    for mark, (name, _) in measured.marks().items():
        page = shown(measured, f"<!-- {mark} -->", tmp_path)
        if hasattr(measured.TABLES[name], "load"):  # records of the package
            assert page
            assert "<!--" not in page
            continue
        assert page == f"*No figures are in this version; `{measured.TABLES[name].SOURCE}` makes them.*"


def test_a_part_has_tables_of_its_own(measured, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "both.json").write_text('{"one": {"value": 1}, "two": {}}')
    module = SimpleNamespace(
        SOURCE="make it", PARTS=("one", "two", "three"), tables=lambda part: f"{part['value']}"
    )
    monkeypatch.setattr(measured, "TABLES", {"both": module})
    assert shown(measured, "a\n\n<!-- both:one -->\n\nb", tmp_path) == "a\n\n1\n\nb"
    assert shown(measured, "<!-- both:three -->", tmp_path).startswith(
        "*No figures are in this version; `make it`"
    )
    with pytest.raises(PluginError, match=r"both\.json has no 'value', which <!-- both:two --> shows"):
        shown(measured, "<!-- both:two -->", tmp_path)
    for mark in ("both", "both:four"):
        with pytest.raises(PluginError, match=rf"in <!-- {mark} -->, one of both:one, both:two, both:three"):
            shown(measured, f"<!-- {mark} -->", tmp_path)


def test_a_file_without_a_figure_of_its_tables_fails_the_build(measured, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.json").write_text('{"runs": []}')
    tables = SimpleNamespace(SOURCE="make it", tables=lambda content: content["variant"])
    monkeypatch.setattr(measured, "TABLES", {"one": tables})
    with pytest.raises(PluginError, match=r"concepts/page\.md: docs/data/one\.json has no 'variant'"):
        shown(measured, "<!-- one -->", tmp_path)


def test_an_unknown_mark_fails_the_build(measured, tmp_path):
    with pytest.raises(
        PluginError,
        match=r"concepts/page\.md: expected the name of tables in <!-- grahps -->, one of benchmark",
    ):
        shown(measured, "text\n\n<!-- grahps -->\n", tmp_path)


def test_other_comments_and_pages_stay(measured, tmp_path):
    text = "text <!-- reproduced:aa --> in a line\n\n<!-- a remark -->\n\n    <!-- reproduced:aa -->\n"
    assert shown(measured, text, tmp_path) == text


def test_every_table_has_a_page_and_the_figures_of_this_version(measured):
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    for words, (name, part) in measured.marks().items():
        mark, path = f"\n<!-- {words} -->\n", DOCS / "data" / f"{name}.json"
        loaded = part is None or hasattr(measured.TABLES[name], "load")
        if loaded and not path.exists():  # records of the package, of which several pages may have tables
            continue
        assert sum(mark in page for page in pages) == 1
        there = path.exists() and (loaded or part in json.loads(path.read_text("utf-8")))
        assert ("|---|" in shown(measured, mark, DOCS).replace(" ", "")) == there


def test_intervals_and_signs_are_typeset_in_rows_alone(measured):
    found = measured.typeset(
        "En-De, -1 [-2, -1].\n\n| a | b |\n| --- | --- |\n| En-De | **-1.5** [-2.0, +1e-3] |"
    )
    assert found == (
        "En-De, -1 [-2, -1].\n\n| a | b |\n| --- | --- |\n"
        "| En-De | **\N{MINUS SIGN}1.5** [\N{MINUS SIGN}2.0,\N{NO-BREAK SPACE}+1e-3] |"
    )
