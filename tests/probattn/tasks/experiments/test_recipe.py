"""Recipes of experiments: those that come along, what is filled in, and what is refused."""

from pathlib import Path

import pytest

from probattn import recipes

NAMES = [name for name in recipes.recipe_names() if name.startswith("copying")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "experiment: {conditions: {more: {types: 60}, all: {title: All words}}}\n", encoding="utf-8"
    )
    return path


def loaded(file: Path, *overrides: str) -> recipes.ExperimentRecipe:
    recipe = recipes.load_any_recipe(file, overrides)
    assert isinstance(recipe, recipes.ExperimentRecipe)
    return recipe


def test_every_experiment_comes_in_two_sizes() -> None:
    assert len(NAMES) == 10
    full = {name for name in NAMES if not name.endswith("_reduced")}
    assert {f"{name}_reduced" for name in full} == set(NAMES) - full


def test_what_is_left_out_is_filled_in(file: Path) -> None:
    recipe = loaded(file)
    assert recipe.titles() == {"more": "more", "all": "All words"}
    assert recipe.by_step == recipe.training.steps == 300
    assert recipe.experiment.conditions["all"].types == 40
    assert loaded(file, "experiment.conditions.more.types=50").experiment.conditions["more"].types == 50
    assert loaded(file, "training.steps=25").training.evaluated() == (0, 10, 20, 25)
    assert loaded(file, "training.steps=20").training.evaluated() == (0, 10, 20)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("experiment.conditions={}", "experiment.conditions"),
        ("experiment.conditions.more.typs=3", "unknown key 'typs' in experiment.conditions.more"),
        ("experiment.conditions.more.typs=3", "did you mean 'types'?"),
        ("experiment.conditions.more.types=many", "experiment.conditions.more.types"),
        ("experiment.conditions.more.types=39", "conditions.more.types: expected at least length (40)"),
        (
            "experiment.conditions={More: {}}",
            "names of small letters, digits and '_' other than 'search', got 'More'",
        ),
        ("experiment.conditions={search: {}}", "other than 'search', got 'search'"),
        ("experiment.conditions.more.starts=bad", "more.starts: expected 'random', since search is null"),
        ("experiment.conditions.more.bidirectional=true", "the task 'copy' has one direction"),
        ("experiment.search={models: 2}", "search: expected null, since no condition has starts"),
        (
            "experiment={task: keyword, conditions: {a: {heads: 2}}}",
            "conditions.a.heads: expected none, the task 'keyword' has no such option",
        ),
        (
            "experiment={conditions: {a: {starts: bad, attention: uniform}}}",
            "expected 'random' where attention is 'uniform', got 'bad'",
        ),
        ("experiment.by_step=301", "experiment.by_step: expected at most training.steps (300), got 301"),
        ("training.runs=1", "training.runs"),
        ("attention.method=babn", "unknown key 'attention'"),
    ],
)
def test_what_cannot_be_is_named(file: Path, override: str, words: str) -> None:
    with pytest.raises(recipes.RecipeError) as caught:
        recipes.load_any_recipe(file, [override])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_model_of_the_release_copies(tmp_path: Path) -> None:
    file = tmp_path / "keyword.yaml"
    file.write_text(
        "experiment: {task: keyword, conditions: {a: {}}}\nnetwork: {form: release}\n", encoding="utf-8"
    )
    with pytest.raises(
        ValueError, match=r"network\.form: expected 'paper' for the task 'keyword', got 'release'"
    ):
        loaded(file)
