"""Recipes of graphs: those that come with the library, what they refuse, and who takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from probattn import AlignmentAttention, BayesianAttention, recipes
from probattn.sites import Method

GRAPHS = [name for name in recipes.recipe_names() if name.startswith(("cora", "pubmed"))]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text("graph:\n  name: cora\n  folder: files\nattention:\n  method: babn\n")
    return path


def said(path: Path | str, *overrides: str) -> str:
    with pytest.raises(recipes.RecipeError) as caught:
        recipes.load_any_recipe(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_they_have_the_settings_of_the_paper() -> None:
    found = {name: recipes.load_any_recipe(name) for name in GRAPHS}
    for name, recipe in found.items():
        assert isinstance(recipe, recipes.GraphRecipe)
        network, training = recipe.network, recipe.training
        pubmed = name.startswith("pubmed")
        assert (network.heads, network.features, network.output_heads) == (8, 8, 8 if pubmed else 1)
        assert (network.dropout, network.attention_dropout) == (0.6, 0.6)
        assert (training.learning_rate, training.weight_decay) == ((0.01, 1e-3) if pubmed else (0.005, 5e-4))
        rule = training.early_stopping
        assert rule is not None
        expected = ("log_likelihood", "max", 100, {"accuracy": "max"})
        assert (rule.metric, rule.mode, rule.patience, rule.also) == expected


def test_what_they_are_named_after() -> None:
    def methods(name: str) -> tuple[Method, ...]:
        recipe = recipes.load_any_recipe(name)
        assert isinstance(recipe, recipes.GraphRecipe)
        return recipe.methods()

    assert methods("cora_deterministic") == ()
    assert methods("cora_babn") == (BayesianAttention(),)
    assert methods("cora_bam") == (BayesianAttention.bam(),)
    for name in ("cora_ct", "cora_gan"):
        (aligned,) = methods(name)
        assert isinstance(aligned, AlignmentAttention)
        assert (aligned.method, aligned.weight) == (name.removeprefix("cora_"), 0.01)


def test_a_section_graph_makes_it_one_of_a_graph(file: Path) -> None:
    recipe = recipes.load_any_recipe(file, ["alignment.method=ot"])
    assert isinstance(recipe, recipes.GraphRecipe)
    assert recipe.name == "mine"
    assert recipe.graph.folder == str(file.parent / "files")
    assert len(recipe.methods()) == 2 and recipe.of(BayesianAttention) == BayesianAttention()
    assert isinstance(recipes.load_any_recipe("demo"), recipes.Recipe)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "graph.name=../cora",
            "graph.name (override graph.name=../cora): expected letters, digits, spaces, '.', '-', '_', got",
        ),
        ("graph.nam=cora", "unknown key 'nam' in graph"),
        ("data.train=imdb", "unknown key 'data'"),
        ("training.epochs=0", "training.epochs (override training.epochs=0): expected a whole number"),
        ("training.batch_size=2", "unknown key 'batch_size' in training"),
        (
            "network.dropout=1.0",
            "network.dropout (override network.dropout=1.0): expected a number in [0, 1)",
        ),
        ("alignment.weight=-1", "alignment.weight (override alignment.weight=-1): expected a number"),
        (
            "alignment.method=tc",
            "alignment.method (override alignment.method=tc): expected 'ct', 'ot', 'gan', 'mmd' or 'ct_heads'",
        ),
        ("attention.upward=positions", "attention.upward: expected 'heads', since nodes have no positions"),
    ],
)
def test_mistakes_are_said_in_a_line(file: Path, override: str, message: str) -> None:
    assert message in said(file, override)


def test_the_graph_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    path.write_text("graph:\n  folder: files\n")
    assert "missing key 'name' in graph" in said(path)
