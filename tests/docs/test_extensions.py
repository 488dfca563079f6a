"""What turns docstrings and equations into pages."""

from collections.abc import Callable
from types import SimpleNamespace

import griffe
import pytest
from mkdocs.exceptions import PluginError

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
