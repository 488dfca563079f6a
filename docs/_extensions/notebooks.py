"""mkdocs hook: each tutorial is a notebook too, beside its page, with the outputs that the page shows.

The tests run the code of the pages and compare its outputs, so that the notebooks hold what was executed.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

FOLDER = "tutorials/"
LINK = '<p><a href="{}" download>This page as a notebook</a></p>'
_FENCE = re.compile(r"^```(?P<kind>python|text)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- within [\d.]+ -->\s*")
_IMAGE = re.compile(r"(?P<head>!\[[^\]]*\]\()(?P<path>[^)\s]+\.svg)\)")
_NAME = re.compile(r"\[(?P<text>[^\]]+)\]\[[\w.]+\]")
_PAGE = re.compile(r"(?P<head>\]\([^)\s]+)\.md(?P<rest>[^)\s]*\))")
_notebooks: dict[str, dict[str, Any]] = {}


def notebook(markdown: str, folder: Path) -> dict[str, Any]:
    """The notebook of a page in a folder, whose figures become part of it."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, **rest: Any) -> None:
        if text.strip():
            lines = text.strip("\n").splitlines(keepends=True)
            cells.append({
                "cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **rest
            })  # fmt: skip

    def figure(match: re.Match[str]) -> str:
        content = base64.b64encode((folder / match["path"]).read_bytes()).decode()
        return f"{match['head']}data:image/svg+xml;base64,{content})"

    def prose(text: str) -> str:
        named = _NAME.sub(r"\g<text>", _COMMENT.sub("", text))
        return _IMAGE.sub(figure, _PAGE.sub(r"\g<head>.html\g<rest>", named))

    end = 0
    for match in _FENCE.finditer(markdown):
        between = _COMMENT.sub("", markdown[end : match.start()])
        above = cells[-1] if cells else None
        output = match["kind"] == "text" and above is not None and above["cell_type"] == "code"
        if output and not between.strip() and not above["outputs"]:
            lines = match["body"].splitlines(keepends=True)
            above["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
        else:
            add("markdown", prose(between))
            if match["kind"] == "python":
                add("code", match["body"], execution_count=None, outputs=[])
            else:
                add("markdown", match[0])
        end = match.end()
    add("markdown", prose(markdown[end:]))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Keeps the notebook of a tutorial, and links to it below the title."""
    source = page.file.src_uri
    if not source.startswith(FOLDER):
        return markdown
    folder = (Path(config["docs_dir"]) / source).parent
    _notebooks[source.removesuffix(".md") + ".ipynb"] = notebook(markdown, folder)
    title, _, rest = markdown.partition("\n")
    return f"{title}\n\n{LINK.format(Path(source).with_suffix('.ipynb').name)}\n{rest}"


def on_post_build(config: Any, **_: Any) -> None:
    """Writes the notebooks beside the pages."""
    for name, content in _notebooks.items():
        file = Path(config["site_dir"]) / name
        file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
