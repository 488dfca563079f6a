from pathlib import Path

import pytest
from pydantic import BaseModel

from probattn.recipes import Recipe, recipe_reference
from probattn.tasks.sections.problems import section

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recipes" / "reference.md"
PYTHON = 'import probattn.recipes as r; print(r.recipe_reference(), end="")'


def keys(model: type[BaseModel]) -> set[str]:
    found = set(model.model_fields)
    for field in model.model_fields.values():
        inner = section(field.annotation)
        found |= keys(inner) if inner else set()
    return found


def test_the_page_is_what_the_recipes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == recipe_reference(), (
        f"write it anew: python -c '{PYTHON}' > {PAGE}"
    )


@pytest.mark.parametrize("key", sorted(keys(Recipe)))
def test_every_key_is_described(key: str) -> None:
    page = recipe_reference()
    rows = [line for line in page.splitlines() if line.startswith((f"| `{key}` |", f"- `{key}`: "))]
    headings = [line for line in page.splitlines() if line.startswith("#") and f"{key}`" in line]
    assert rows or headings
    for row in rows:
        assert not row.rstrip("| ").endswith("|") and not row.endswith(": ")


def test_tables_are_whole() -> None:
    for line in recipe_reference().splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 5
