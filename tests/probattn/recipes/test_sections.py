"""Sections against what they configure."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import SchedulerType

from probattn import BayesianAttention, recipes
from probattn.data import BUILT_IN, ROLES, DataError, Source, WordSplit
from probattn.data.tables import is_table
from probattn.sites.alignment import AlignmentAttention
from probattn.sites.repulsive import RepulsiveAttention
from probattn.tasks.classification.recipe import VocabularyRecipe
from probattn.tasks.sections.base import Section


def choices(section: type[Section], key: str) -> tuple[Any, ...]:
    return get_args(section.model_fields[key].annotation)


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ({}, {}),
        ({"sampler": "spos", "weight": 0.1, "temperature": 5}, {"sampler": "spos", "repulsion": 0.1}),
        ({"sampler": "spos", "temperature": "datum", "langevin": 0.1}, {"sampler": "spos"}),
        ({"projections": ["value"], "layers": "cross", "kind": "cross"}, {"projections": ("value",)}),
        ({"kernel": "linear", "bandwidth": 2.0, "prior": 0.1, "step_size": 1}, {"kernel": "linear"}),
    ],
)
def test_repulsion_is_built_as_written(written: dict[str, Any], options: dict[str, Any]) -> None:
    same = {key: value for key, value in written.items() if key not in {"weight", "kind", "projections"}}
    expected = {"layers": "all", "attention": written.get("kind", "all")} | same | options
    assert recipes.RepulsionRecipe(**written).build(seed=7) == RepulsiveAttention(**expected, seed=7)
    values = recipes.RepulsionRecipe(**written)
    assert recipes.RepulsionRecipe(**recipes.RepulsionRecipe(**written).model_dump()) == values


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("step_size: 0", r"repulsion\.step_size \(line 2\): expected a number > 0, got 0"),
        ("bandwidth: -1", r"repulsion\.bandwidth \(line 2\): expected a number > 0 or null, got -1"),
        ("bandwidth: 0", r"repulsion\.bandwidth \(line 2\): expected a number > 0 or null, got 0"),
        (
            "{kernel: cosine, bandwidth: 1}",
            r"repulsion \(line 2\): bandwidth: the kernel 'cosine' has none; leave it out",
        ),
        ("projections: [output]", r"repulsion\.projections.*: expected .*'query', 'key' or 'value'.*"),
        ("projections: [key, key]", r"repulsion \(line 2\): projections: .* each once, got \('key', 'key'\)"),
        ("weight: -0.1", r"repulsion\.weight \(line 2\): expected a number >= 0, got -0\.1"),
    ],
)
def test_wrong_repulsion_is_refused_in_one_line(written: str, message: str) -> None:
    section = written if written.startswith("{") else f"{{{written}}}"
    with pytest.raises(recipes.RecipeError, match=f"^recipe: {message}$"):
        recipes.read_recipe(f"data: {{train: imdb}}\nrepulsion: {section}\n")


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ({}, AlignmentAttention(layers="all", attention="all")),
        ({"method": "gan", "weight": 0.1}, AlignmentAttention("gan", 0.1, layers="all", attention="all")),
        ({"method": "ot", "preset": "paper"}, AlignmentAttention.paper("ot", layers="all", attention="all")),
        (
            {"method": "ot", "preset": "paper", "debias": True, "layers": [0, -1], "kind": "self"},
            AlignmentAttention.paper("ot", debias=True, layers=[0, -1], attention="self"),
        ),
        (
            {"method": "mmd", "bandwidth": 2},
            AlignmentAttention("mmd", bandwidth=2, layers="all", attention="all"),
        ),
    ],
)
def test_alignment_is_built_as_written(written: dict[str, Any], options: AlignmentAttention) -> None:
    recipe = recipes.AlignmentRecipe(**written)
    assert recipe.build() == options
    assert recipes.AlignmentRecipe(**recipe.model_dump()) == recipe
    assert recipe.build(seed=7) == replace(options, seed=7)


def test_a_recipe_names_several_methods_at_once() -> None:
    text = (
        "data: {train: imdb}\nattention: {method: bam}\nalignment: {method: gan}\n"
        "repulsion: {layers: first}\ntraining: {seed: 5}\n"
    )
    recipe = recipes.read_recipe(text)
    aligned = AlignmentAttention("gan", layers="all", attention="all", seed=5)
    repelled = RepulsiveAttention(layers="first", attention="all", seed=5)
    assert recipe.methods() == (BayesianAttention.bam(), aligned, repelled)
    expected = (aligned, repelled)
    assert recipes.read_recipe(text, overrides=["attention.method=deterministic"]).methods() == expected
    values = (BayesianAttention.bam(), repelled)
    assert recipes.read_recipe(text, overrides=["alignment=null"]).methods() == values
    plain = recipes.read_recipe("data: {train: imdb}\nalignment:\n")
    assert plain.alignment is None
    truth = recipes.AlignmentRecipe(method="ot")
    assert recipes.read_recipe("data: {train: imdb}", overrides=["alignment.method=ot"]).alignment == truth
    assert recipe.baseline().methods() == ()
    assert recipes.read_recipe(recipe.dump()) == recipe


def test_choices_are_those_of_what_they_configure() -> None:
    assert set(choices(recipes.TrainingRecipe, "schedule")) <= {item.value for item in SchedulerType}
    for name in choices(recipes.TrainingRecipe, "optimizer"):
        assert issubclass(
            getattr(torch.optim, recipes.TrainingRecipe(optimizer=name).optimizer_class),
            torch.optim.Optimizer,
        )


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ({}, BayesianAttention()),
        ({"method": "bam"}, BayesianAttention.bam()),
        ({"method": "bam", "concentration": 5}, BayesianAttention.bam(5.0)),
        ({"method": "bam", "posterior": "lognormal"}, BayesianAttention.bam(posterior="lognormal")),
        ({"preset": "paper"}, BayesianAttention.paper()),
        ({"preset": "paper", "sigma": 0.5}, BayesianAttention.paper(sigma=0.5)),
        ({"method": "deterministic", "rho": 3.0}, None),
    ],
)
def test_what_is_left_out_comes_from_preset_and_method(written, options) -> None:
    recipe = recipes.AttentionRecipe(**written)
    assert recipe.build() == options
    assert recipes.AttentionRecipe(**recipe.model_dump()) == recipe


def test_the_baseline_differs_in_one_word() -> None:
    recipe = recipes.read_recipe("data: {train: imdb}\nattention: {method: bam}\n")
    expected = recipe.model_dump()
    expected["attention"]["method"] = "deterministic"
    assert recipe.baseline().model_dump() == expected
    assert recipes.read_recipe(recipe.baseline().dump()) == recipe.baseline()


def test_length_of_the_training() -> None:
    assert (recipes.TrainingRecipe().epochs, recipes.TrainingRecipe().steps) == (3, None)
    assert (recipes.TrainingRecipe(steps=9).epochs, recipes.TrainingRecipe(steps=9).steps) == (None, 9)


def test_a_source_has_the_keys_of_a_source() -> None:
    assert set(recipes.SourceRecipe.model_fields) == {field.name for field in fields(Source)}
    for field in fields(Source):
        if field.name not in ("source", "label_map"):
            assert recipes.SourceRecipe.model_fields[field.name].default == field.default, field.name
    written = {"source": "a.csv", "text": "review", "label_map": {"0": "bad"}, "quotes": False}
    assert recipes.SourceRecipe(**written).build() == Source(**written)


def test_every_role_of_the_data_has_a_source_and_a_limit() -> None:
    assert tuple(recipes.LimitsRecipe.model_fields) == ROLES
    assert tuple(recipes.DataRecipe.model_fields)[: len(ROLES)] == ROLES


def test_data_are_read_as_the_recipe_says(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("review,stars\n" + "".join(f"text {n},{n % 2}\n" for n in range(100)))
    data = recipes.DataRecipe.model_validate(
        {
            "train": {"source": str(path), "text": "review", "label": "stars"},
            "test_fraction": 0.2,
            "limits": {"train": 20, "test": 3},
        }
    )
    task = data.load()
    assert (len(task.train), len(task.test)) == (20, 3)
    assert 1 <= len(task.validation) <= 25
    with pytest.raises(DataError, match="expected a column 'text'"):
        recipes.DataRecipe.model_validate({"train": str(path)}).load()


def test_the_network_that_comes_with_a_package() -> None:
    folder = Path(recipes.NetworkRecipe().locate())
    assert folder.name == "model"
    assert (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()


def test_networks_in_folders_and_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "google/electra-small-discriminator"
    assert recipes.NetworkRecipe(name="google/electra-small-discriminator").locate() == expected
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    message = r"network.name: expected a folder with a config.json, got 'net' without"
    with pytest.raises(recipes.RecipeError, match=message):
        recipes.NetworkRecipe(name="net").locate()
    (tmp_path / "net" / "config.json").write_text("{}")
    assert recipes.NetworkRecipe(name="net").locate() == "net"
    assert recipes.NetworkRecipe(name="net").resolved().name == str(tmp_path / "net")
    assert recipes.NetworkRecipe().resolved() == recipes.NetworkRecipe()
    text = "data: {train: {source: a.csv}, shifted: [{source: b.csv}, imdb]}\nnetwork: {name: net}"
    recipe = recipes.read_recipe(text).resolved()
    assert [each.source for each in recipe.data.shifted] == [str(tmp_path / "b.csv"), "imdb"]
    assert (recipe.data.train.source, recipe.network.name) == (str(tmp_path / "a.csv"), str(tmp_path / "net"))
    with pytest.raises(recipes.RecipeError, match=r"got './nte', and there is no such folder"):
        recipes.NetworkRecipe(name="./nte").locate()


NUMBERS = st.floats(1e-12, 9, allow_nan=False) | st.integers(1, 9)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=10)
RECIPES = st.fixed_dictionaries(
    {
        "data": st.fixed_dictionaries(
            {
                "train": st.sampled_from(sorted(name for name in BUILT_IN if not BUILT_IN[name].paired))
                | WORDS.map(lambda word: f"{word}.csv").filter(is_table)
            }
        )
    },
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,8}", fullmatch=True),
        "attention": st.fixed_dictionaries(
            {"method": st.sampled_from(["babn", "bam", "deterministic"])},
            optional={
                "rho": NUMBERS,
                "layers": st.sampled_from(["all", "last"])
                | st.lists(st.integers(-3, 3), min_size=1, max_size=3),
                "preset": st.sampled_from(["default", "paper"]),
            },
        ),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "learning_rate": NUMBERS,
                "site_learning_rate": st.none() | NUMBERS,
                "precision": st.sampled_from(["no", "bf16"]),
                "optimizer_arguments": st.dictionaries(st.just("eps"), NUMBERS),
                "early_stopping": st.none() | st.fixed_dictionaries({"patience": st.integers(1, 9)}),
            },
        ),
        "alignment": st.none()
        | st.fixed_dictionaries(
            {"method": st.sampled_from(["ct", "ot", "gan", "mmd"])},
            optional={"weight": NUMBERS, "preset": st.sampled_from(["default", "paper"])},
        ),
        "report": st.fixed_dictionaries({"texts": st.lists(WORDS, max_size=3)}),
    },
)


@given(RECIPES)
@settings(deadline=None, max_examples=50)
def test_a_recipe_that_is_written_out_reads_as_an_equal_one(content: dict[str, Any]) -> None:
    recipe = recipes.Recipe.model_validate(content)
    again = recipes.read_recipe(recipe.dump())
    assert again == recipe
    assert again.dump() == recipe.dump()


def test_words_are_for_a_network_built_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "self_attentive").mkdir()  # a folder of that name is not looked at
    new = recipes.NetworkRecipe(name="self_attentive", embeddings="vectors.txt")
    assert new.is_new
    assert new.resolved() == new.model_copy(update={"embeddings": str(tmp_path / "vectors.txt")})
    glove = recipes.NetworkRecipe(name="self_attentive", embeddings="glove-6b-50d")
    assert glove.resolved() == glove
    assert not recipes.NetworkRecipe().is_new
    message = "vocabulary: 'minilm' brings its own; this key is for self_attentive"
    with pytest.raises(ValidationError, match=message):
        recipes.NetworkRecipe(vocabulary=VocabularyRecipe())
    for key, value in (("size", 2), ("min_frequency", 0), ("split", "letters")):
        with pytest.raises(ValidationError):
            VocabularyRecipe.model_validate({key: value})
    assert set(choices(VocabularyRecipe, "split")) == set(get_args(WordSplit))


FILES = {"source": "a.csv", "text": "message", "label": "kind", "label_map": {"0": "ham"}, "quotes": False}


@pytest.mark.parametrize("role", ["validation", "test", "shifted", "out_of_domain"])
def test_files_have_the_columns_of_the_training_file(role: str) -> None:
    data = recipes.DataRecipe.model_validate({"train": FILES, role: "b.csv"})
    expected = recipes.SourceRecipe.model_validate(FILES | {"source": "b.csv"})
    assert getattr(data, role) == expected
    partly = recipes.DataRecipe.model_validate({"train": FILES, role: {"source": "b.csv", "text": "words"}})
    assert getattr(partly, role) == expected.model_copy(update={"text": "words"})
    assert recipes.DataRecipe.model_validate(data.model_dump()) == data
    built = recipes.DataRecipe(
        train=recipes.SourceRecipe.model_validate(FILES),
        **{role: recipes.SourceRecipe.model_validate("b.csv")},
    )
    assert built == data


def test_sets_with_a_name_have_columns_of_their_own() -> None:
    data = recipes.DataRecipe.model_validate(
        {"train": FILES, "shifted": ["imdb", "b.csv"], "out_of_domain": "bbc_news"}
    )
    assert data.out_of_domain == recipes.SourceRecipe.model_validate("bbc_news")
    assert isinstance(data.shifted, list)
    assert [source.text for source in data.shifted] == ["text", "message"]
    expected = recipes.SourceRecipe.model_validate("b.csv")
    assert recipes.DataRecipe.model_validate({"train": "imdb", "test": "b.csv"}).test == expected


def test_second_texts_are_taken_too_unless_they_are_refused() -> None:
    train = {"source": "a.csv", "text": "first", "text_pair": "second"}
    data = recipes.DataRecipe.model_validate(
        {"train": train, "test": "b.csv", "out_of_domain": {"source": "c.csv", "text_pair": None}}
    )
    assert data.test is not None and data.out_of_domain is not None
    assert data.test.build().paired and not data.out_of_domain.build().paired
