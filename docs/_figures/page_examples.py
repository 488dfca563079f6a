"""What the examples of a page leave behind, for drawings of the networks that a page trains."""

import re
from pathlib import Path
from typing import Any


def run_examples(page: Path, until: str) -> dict[str, Any]:
    """Runs a page's Python, from its beginning up to a heading.

    Args:
        page: the Markdown file.
        until: the heading's line.

    Returns:
        The names that it defines.
    """
    names: dict[str, Any] = {}
    text = page.read_text(encoding="utf-8").partition(until)[0]
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(code, names)
    return names
