"""mkdocs hook: equations become MathML while the site is built, so that its pages need no script and no network."""

import html
import re
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

# What pymdownx.arithmatex (generic) leaves in a page.
_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(page_html: str, page: Any, **_: Any) -> str:
    """Replaces every equation of a page; one that cannot be read fails the build and is quoted."""
    converter = LatexToMathML()

    def convert(match: re.Match[str]) -> str:
        latex = html.unescape(match["latex"]).strip()
        display = match["open"] == "["
        try:
            mathml = converter.convert_with_local_state(latex, displaystyle=display)
        except LatexError as error:
            raise PluginError(
                f"{page.file.src_uri}: the equation {latex!r} cannot be read: {error}"
            ) from error
        return f'<div class="equation">{mathml}</div>' if display else mathml

    return _EQUATION.sub(convert, page_html)
