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
    text, heading, _ = page.read_text(encoding="utf-8").partition(until)
    if not heading:
        raise ValueError(f"{page}: expected the heading {until!r}, got none")
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(code, names)
    return names
