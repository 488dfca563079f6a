"""What turns docstrings and equations into pages."""

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import griffe
import pytest
import yaml
from material.plugins.offline.plugin import OfflinePlugin
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))


@pytest.fixture
def rewritten(load) -> Callable[[str], str]:
    """What becomes of a docstring."""
    extensions = griffe.load_extensions(load("rst").RestructuredText())

    def rewrite(docstring: str) -> str:
        code = f'class Other: ...\ndef documented():\n    r"""{docstring}"""\n'
        with griffe.temporary_visited_package(
            "some", {"__init__.py": code}, extensions=extensions
        ) as package:
            text = package["documented"].docstring
        assert text is not None
        return str(text.value)

    return rewrite


def test_equations_of_docstrings_become_markdown(rewritten):
    assert rewritten(r"Computes :math:`\alpha + 1`.") == r"Computes $\alpha + 1$."


def test_a_block_of_equations_ends_where_its_indentation_ends(rewritten):
    text = rewritten("First.\n\n    .. math::\n        a &= b \\\\\n        c &= d\n\n    Then `x`.")
    assert "$$\n\\begin{aligned}a &= b \\\\\nc &= d\\end{aligned}\n$$" in text
    assert text.endswith("\nThen `x`.")


def test_an_equation_beside_its_directive_needs_no_alignment(rewritten):
    assert "$$\nW = S\n$$" in rewritten("First.\n\n    .. math:: W = S\n\n    Then.")


def test_names_refer_to_what_they_resolve_to(rewritten):
    assert '<autoref identifier="some.Other" optional><code>Other</code></autoref>' in rewritten(
        "See :class:`Other`."
    )
    assert '<autoref identifier="far.Away" optional><code>Away</code></autoref>' in rewritten(
        "See :class:`~far.Away`."
    )


def test_one_example_is_a_section_of_examples(rewritten):
    assert "\nExamples:\n" in rewritten("First.\n\n    Example:\n        >>> 1 + 1\n        2\n    ")


def test_equations_become_mathml(load):
    html = '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[x\\]</div>'
    page = load("mathml").on_page_content(html, page=PAGE)
    assert "arithmatex" not in page
    assert page.count("<math") == 2
    assert page.count('<div class="equation">') == 1
    assert "&lt;" in page


def test_an_equation_that_cannot_be_read_names_its_page(load):
    with pytest.raises(PluginError, match=r"page\.md: the equation '\\\\nosuchcommand'"):
        load("mathml").on_page_content('<span class="arithmatex">\\(\\nosuchcommand\\)</span>', page=PAGE)


def test_functions_are_not_hidden_by_modules_of_their_name(load):
    extensions = griffe.load_extensions(load("shadowed").ShadowedNames())
    files = {
        "__init__.py": 'from some.inner import same\nfrom other import alien\n__all__ = ["alien", "same"]\n',
        "inner/__init__.py": 'from some.inner.same import helper, same\n__all__ = ["helper", "same"]\n',
        "inner/same.py": 'def same():\n    """What is meant."""\n\ndef helper(): ...\n',
    }
    with griffe.temporary_visited_package("some", files, extensions=extensions) as package:
        for where in (package, package["inner"]):
            assert where["same"].final_target.is_function
        assert package["same"].docstring.value == "What is meant."
        assert package["inner.helper"].final_target.path == "some.inner.same.helper"


def test_every_public_function_and_class_is_found_by_its_name(load):
    """On the package as it is: what Python finds under a public name is what the pages describe."""
    extensions = griffe.load_extensions(load("rst").RestructuredText(), load("shadowed").ShadowedNames())
    loaded = griffe.load("probattn", search_paths=[ROOT], extensions=extensions)
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name in re.findall(r"^::: (probattn[\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue  # an object, or a package that is an extra
            for public in getattr(module, "__all__", ()):
                if inspect.isfunction(getattr(module, public)) or inspect.isclass(getattr(module, public)):
                    found = loaded[f"{name.removeprefix('probattn.')}.{public}"]
                    target = found.final_target if found.is_alias else found
                    assert not target.is_module, f"{name}.{public}"
                    text = target.docstring.value if target.docstring else ""
                    assert not re.search(r":[a-z]+:`|^ *\.\. math::", text, re.MULTILINE), f"{name}.{public}"


def test_the_search_works_from_a_file_and_loads_nothing() -> None:
    offline = OfflinePlugin()
    offline.load_config({})
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    plugins = {
        name: plugin[name] for plugin in site["plugins"] if isinstance(plugin, dict) for name in plugin
    }
    config = SimpleNamespace(extra=site["extra"], use_directory_urls=site["use_directory_urls"])
    offline.on_config(config)  # adds a script of another site unless there is one
    assert "offline" in site["plugins"]
    assert [(ROOT / "docs" / script).is_file() for script in config.extra["polyfills"]] == [True]
    assert "stemmer" not in plugins["search"]["pipeline"]  # the theme looks for the beginnings of words


def test_computed_values_of_attributes_are_left_out(load):
    code = 'NAMES = MappingProxyType({"a": "b"})\n"""Names by key."""\nKINDS = Literal["a"]\n"""Kinds."""\n'
    extensions = griffe.load_extensions(load("rst").RestructuredText())
    with griffe.temporary_visited_package("some", {"__init__.py": code}, extensions=extensions) as package:
        assert package["NAMES"].value is None and package["NAMES"].docstring is not None
        assert str(package["KINDS"].value) == "Literal['a']"
