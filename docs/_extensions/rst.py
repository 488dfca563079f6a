"""griffe extension: the reStructuredText roles of docstrings, as Markdown.

Docstrings write equations as ``:math:`x``` or in a ``.. math::`` block and names as ``:class:`Name```, which Python
tools read, and call a single example ``Example:``; the pages are Markdown, and their examples have one heading.
"""

import re
import textwrap
from typing import Any

import griffe

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<first>[^\n]*)(?P<rest>(?:\n(?: *(?=\n|\Z)|(?P=indent) +\S[^\n]*))*)",
    re.MULTILINE,
)
_EXAMPLE = re.compile(r"^(?P<indent> *)Example:$", re.MULTILINE)
_ROLE = re.compile(r":(?P<role>math|attr|class|data|exc|func|meth|mod|obj|ref):`(?P<text>[^`]+)`")


_COMPUTED = re.compile(r"(MappingProxyType|get_args|_\w+)\(")
"""Beginning of a value that says less to a reader than the sentence below it."""

# torch's way to write a cached property.
griffe.stdlib_decorators["torch.distributions.utils.lazy_property"] = {"cached", "property"}


class RestructuredText(griffe.Extension):
    """Rewrites the docstring of every object of a package, before names hide modules from griffe.

    Values of module attributes that functions compute are left out: their docstrings say what they hold.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrites the docstrings of a package that was loaded."""
        _rewrite(pkg)


def _rewrite(obj: griffe.Object) -> None:
    """Rewrites one docstring and those of all members."""
    if obj.is_attribute and obj.docstring is not None and _COMPUTED.match(str(obj.value)):
        obj.value = None
    if obj.docstring is not None:
        text = _EXAMPLE.sub(r"\g<indent>Examples:", _BLOCK.sub(_block, obj.docstring.value))
        obj.docstring.value = _ROLE.sub(lambda match: _role(match, obj), text)
    for member in obj.members.values():
        if isinstance(member, griffe.Object):
            _rewrite(member)


def _block(match: re.Match[str]) -> str:
    latex = "\n".join((match["first"].strip(), textwrap.dedent(match["rest"].strip("\n")))).strip()
    if "&" in latex and r"\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    return textwrap.indent(f"\n$$\n{latex}\n$$\n", match["indent"])


def _role(match: re.Match[str], obj: griffe.Object) -> str:
    if match["role"] == "math":
        return f"${match['text']}$"
    name = match["text"].lstrip("~")
    shown = name.rpartition(".")[2] if match["text"].startswith("~") else name
    try:
        target = obj.resolve(name)
    except griffe.NameResolutionError:
        target = name
    return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'
