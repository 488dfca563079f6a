"""Recipes of translation: those that come with the library, what they refuse, and the page about them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from probattn import BayesianAttention, RepulsiveAttention, recipes
from probattn.tasks.translation.task import recurrent_config


def loaded(path: Path | str, *overrides: str) -> recipes.TranslationRecipe:
    recipe = recipes.load_any_recipe(path, overrides)
    assert isinstance(recipe, recipes.TranslationRecipe)
    return recipe


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text("translation:\nattention: {method: babn}\nrepulsion: {layers: cross}\n")
    return path


def test_the_small_one_is_that_of_the_paper() -> None:
    recipe = loaded("multi30k_small")
    network, training = recipe.network, recipe.training
    assert (network.width, network.layers, network.heads, network.feed_forward) == (512, 6, 4, 1024)
    assert (training.learning_rate, training.warmup_steps, training.schedule) == (5e-4, 4000, "inverse_sqrt")
    assert training.optimizer_arguments == {"betas": [0.9, 0.98]}


def test_the_lstm_is_that_of_snell_et_al() -> None:
    """Appendix A.8: two bidirectional layers of 256, dropout 0.5, one hidden layer of 256, 8,000 subwords, batch 16."""
    recipe = loaded("multi30k_lstm")
    config = recurrent_config(recipe.network, recipe.translation.subwords)
    sizes = (config.hidden_size, config.num_hidden_layers, config.decoder_hidden_size, config.output_size)
    assert sizes == (256, 2, 256, 256) and config.bidirectional and config.num_attention_heads == 1
    assert (config.hidden_dropout, config.dropout, config.vocab_size) == (0.5, 0.0, 8000)
    assert recipe.training.batch_size == 16 and recipe.training.label_smoothing == 0


def test_the_lstm_of_iwslt_is_that_of_zhang_et_al() -> None:
    """ICML 2021, A.2.2: an encoder of 512 units in each direction, a decoder of 768, 14,000 subwords."""
    recipe = loaded("iwslt14_lstm_paper")
    config = recurrent_config(recipe.network, recipe.translation.subwords)
    assert (config.hidden_size, config.decoder_hidden_size, config.num_hidden_layers) == (512, 768, 2)
    assert (config.embedding_size, config.output_size, config.vocab_size) == (512, 512, 14_000)
    assert recipe.training.batch_size == 6 and recipe.training.learning_rate == 3e-4
    assert (recipe.search.num_beams, recipe.search.length_penalty) == (10, 1.0)


@pytest.mark.parametrize(("size", "width", "heads"), [("base", 512, 8), ("big", 1024, 16)])
def test_transformers_of_wmt_are_those_of_vaswani_et_al(size: str, width: int, heads: int) -> None:
    recipe = loaded(f"wmt14_{size}_paper")
    network, training = recipe.network, recipe.training
    assert (network.width, network.heads, network.feed_forward, network.layers) == (
        width,
        heads,
        4 * width,
        6,
    )
    assert training.learning_rate == pytest.approx((width * training.warmup_steps) ** -0.5, rel=1e-3)
    assert bool(recipe.methods()) == (size == "base")


def test_the_decoder_s_width_is_that_of_an_lstm(file: Path) -> None:
    network = loaded(file, "network={name: lstm, width: 8, decoder_width: 6}").network
    assert recurrent_config(network, 20).decoder_hidden_size == 6
    with pytest.raises(recipes.RecipeError, match="decoder_width: this key is for 'lstm'"):
        loaded(file, "network.decoder_width=64")


def test_an_lstm_has_defaults_of_its_own_and_gets_any_method(file: Path) -> None:
    network = loaded(file, "network={name: lstm}").network
    assert (network.width, network.layers, network.heads, network.dropout) == (256, 2, 1, 0.0)
    assert loaded(file, "network={name: lstm, heads: 8, width: 9}").network.heads == 8
    assert len(loaded(file, "network={name: lstm}").methods()) == 2


def test_variational_alignment_is_for_an_lstm_of_one_head_and_stands_alone(file: Path) -> None:
    lstm, method = "network={name: lstm}", "attention={method: variational, estimator: sample}"
    recipe = loaded(file, lstm, method, "repulsion=null")
    assert recipe.is_variational and recipe.methods() == ()
    assert (recipe.attention.estimator, recipe.attention.prediction) == ("sample", "mixture")
    assert (recipe.training.kl_weight, recipe.training.kl_schedule) == (1.0, "constant")
    less = loaded(file, lstm, method, "repulsion=null", "training.kl_weight=0.5").training
    assert (less.kl_weight, less.kl_schedule) == (0.5, "constant")
    other = loaded(file, "attention.method=deterministic")
    assert not other.is_variational and other.training.kl_weight == 0.001
    for overrides, words in (
        ((lstm, method), "repulsion: expected null with attention.method 'variational'"),
        (("network={name: lstm, heads: 2}", method, "repulsion=null"), "got 'lstm' with 2"),
        (
            ("network={name: lstm, uniform_attention: true}", method, "repulsion=null"),
            "got 'lstm' with 1, uniform",
        ),
    ):
        with pytest.raises(recipes.RecipeError) as caught:
            recipes.load_any_recipe(file, overrides)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_methods_stand_beside_each_other(file: Path) -> None:
    first, second = loaded(file).methods()
    assert isinstance(first, BayesianAttention)
    assert isinstance(second, RepulsiveAttention) and second.layers == "cross"
    assert loaded(file, "repulsion=null", "attention.method=deterministic").methods() == ()


def test_files_of_ones_own(file: Path, tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"{part}.fr").write_text("un chien\nun chat\n")
        (tmp_path / f"{part}.en.gz").write_bytes(gzip.compress(b"a dog\na cat\n"))
    own = "translation={train: train, validation: dev, test: test, source: fr, target: en, limits: {test: 1}}"
    recipe = loaded(file, own)
    assert recipe.translation.train == str(tmp_path / "train") and recipe.translation.corpus is None
    splits = recipe.translation.load()
    assert splits["train"].sources == ("un chien", "un chat")
    assert splits["validation"].targets == ("a dog", "a cat") and len(splits["test"]) == 1


def test_one_of_steps_and_epochs(file: Path) -> None:
    assert loaded(file).training.steps == 20_000
    assert (
        loaded(file, "training.epochs=3").training.steps,
        loaded(file, "training.steps=3").training.epochs,
    ) == (None, None)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("translation.source=fr", "multi30k has 'en' and 'de', got 'fr' and 'de'"),
        ("translation.source=de", "another language than source, got 'de' twice"),
        ("translation.train=my/train", "validation: expected a path without ending, since corpus is null"),
        ("translation={corpus: multi30k, train: my/train}", "train: expected null beside corpus 'multi30k'"),
        ("translation={train: a, validation: b, test: c, folder: d}", "folder: expected null"),
        ("translation.max_length=15", "translation.max_length"),
        ("translation.subword_model=words", "expected 'bpe' or 'unigram', got 'words'"),
        ("network.heads=3", "width: expected an even multiple of heads (3), got 512"),
        ("network={name: lstm, feed_forward: 64}", "feed_forward: this key is for 'transformer'"),
        (
            "network.bidirectional=false",
            "bidirectional: this key is for 'lstm', and the network is 'transformer'",
        ),
        ("network.name=gru", "expected 'transformer' or 'lstm', got 'gru'"),
        ("training.label_smoothing=1.0", "training.label_smoothing"),
        ("training={epochs: 2, steps: 2}", "one of epochs and steps"),
        ("search.beams=5", "unknown key 'beams' in search"),
        ("prediction.num_samples=3", "unknown key 'prediction'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(file: Path, override: str, words: str) -> None:
    with pytest.raises(recipes.RecipeError) as caught:
        recipes.load_any_recipe(file, [override])
    assert words in str(caught.value) and "\n" not in str(caught.value)
