from pathlib import Path

import pytest
from pydantic import BaseModel

import probattn.recipes
from probattn.recipes import Recipe, recipe_reference
from probattn.tasks.sections.keys import section

PLACE = Path(__file__).resolve().parents[3] / "docs" / "recipes"
PAGES = {
    "reference": "recipe_reference",
    "graphs": "graph_recipe_reference",
    "translation": "translation_recipe_reference",
    "graph_text": "graph_text_recipe_reference",
    "visual_questions": "visual_question_recipe_reference",
    "pretraining": "pretraining_recipe_reference",
    "experiments": "experiment_recipe_reference",
    "heads_reference": "head_recipe_reference",
}


def keys(model: type[BaseModel]) -> set[str]:
    found = set(model.model_fields)
    for field in model.model_fields.values():
        inner = section(field.annotation)
        found |= keys(inner) if inner else set()
    return found


@pytest.mark.parametrize(("page", "name"), PAGES.items())
def test_the_page_is_what_the_recipes_say(page: str, name: str) -> None:
    file, reference = PLACE / f"{page}.md", getattr(probattn.recipes, name)
    command = f"python -c 'import probattn.recipes as r; print(r.{name}(), end=\"\")' > {file}"
    assert file.read_text(encoding="utf-8") == reference(), f"write it anew: {command}"


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
