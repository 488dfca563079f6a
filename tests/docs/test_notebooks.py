"""Tutorials as notebooks."""

import re
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
PAGE = """# Title

See [`convert`][probattn.models.convert] and [more](../use/triage.md#how).

![a
figure](figure.svg)

```python
print(0.5)
```

<!-- within 0.1 -->

```text
0.5
```

A diagram:

```text
a -> b
```
"""


def test_prose_code_and_outputs(load, tmp_path):
    (tmp_path / "figure.svg").write_text("<svg/>")
    cells = load("notebooks").notebook(PAGE, tmp_path)["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "markdown"]
    first = "".join(cells[0]["source"])
    assert "See `convert` and [more](../use/triage.html#how)." in first
    assert "](data:image/svg+xml;base64,PHN2Zy8+)" in first
    assert cells[1]["source"] == ["print(0.5)"]
    assert cells[1]["outputs"][0]["text"] == ["0.5\n"]
    assert "".join(cells[3]["source"]) == "```text\na -> b\n```"


@pytest.mark.parametrize("page", TUTORIALS, ids=[page.stem for page in TUTORIALS])
def test_a_notebook_has_the_code_that_the_tests_run(load, page):
    markdown = page.read_text(encoding="utf-8")
    cells = load("notebooks").notebook(markdown, page.parent)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    blocks = re.findall(r"^```python\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL)
    assert code == [block.strip("\n") for block in blocks]
    assert "".join(map(str, cells)).count("```python") == 0
