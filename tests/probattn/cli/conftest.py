"""A tiny network with its tokenizer, a few texts, and one run made of them."""

from __future__ import annotations

import csv
import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from typer.testing import CliRunner

from probattn.cli import app

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "cast", "the", "a", "was"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GERMAN = {
    "a": "ein",
    "dog": "Hund",
    "cat": "Kater",
    "man": "Mann",
    "runs": "rennt",
    "sees": "sieht",
    "red": "roter",
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """Folder of a BERT of 2 layers x 16 with a word-level tokenizer of at most 16 tokens."""
    folder = tmp_path_factory.mktemp("network")
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """A CSV file of 120 short reviews."""
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("data") / "reviews.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["text", "label"])
        for number in range(120):
            words = WORDS[:3] if number % 2 else WORDS[3:6]
            rest = [draw.choice(WORDS[6:]) for _ in range(draw.randint(2, 9))]
            text = " ".join([*rest, draw.choice(words), *draw.sample(rest, 2), str(number)])
            writer.writerow([text, "positive" if number % 2 else "negative"])
    return file


@pytest.fixture(scope="session")
def recipe(network, reviews, tmp_path_factory):
    """A recipe of 6 steps."""
    file = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    file.write_text(
        f"""
network: {{name: {network}}}
data: {{train: {reviews}, shifted: {reviews}, out_of_domain: {reviews}, max_length: null}}
attention: {{method: babn}}
training: {{steps: 6, batch_size: 8, log_every: 2, checkpoint_every: 3, learning_rate: 1e-3, device: cpu}}
prediction: {{num_samples: 3}}
report: {{resamples: 100, uncertain: 1, mistakes: 2, texts: [the film was good]}}
""",
        encoding="utf-8",
    )
    return file


def invoke(*arguments):
    """Runs a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def command():
    """Runs a command and returns click's result."""
    return invoke


@pytest.fixture(scope="session")
def run(recipe, tmp_path_factory):
    """A finished run folder."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    result = invoke("train", recipe, "--output", folder, "--quiet")
    assert result.exit_code == 0, result.output
    assert "warning: " in result.output and "are in the training data too" in result.output
    return folder


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory):
    """40 + 10 + 12 pairs, word for word."""
    draw = random.Random(0)
    place = tmp_path_factory.mktemp("pairs")
    for part, number in (("train", 40), ("dev", 10), ("test", 12)):
        pairs = []
        for _ in range(number):
            words = draw.choices(list(GERMAN), k=draw.randint(2, 7))
            pairs.append((" ".join(words) + " .", " ".join(GERMAN[word] for word in words) + " ."))
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (place / f"{part}.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")
    return place


@pytest.fixture(scope="session")
def translation_recipe(pairs_folder, tmp_path_factory):
    """A recipe of 6 updates of repulsive heads."""
    file = tmp_path_factory.mktemp("recipe") / "words.yaml"
    file.write_text(
        f"""
translation:
  train: {pairs_folder}/train
  validation: {pairs_folder}/dev
  test: {pairs_folder}/test
  subwords: 60
  max_length: 40
network: {{width: 16, layers: 1, heads: 2, feed_forward: 16}}
attention: {{method: deterministic}}
repulsion: {{weight: 0.1}}
training: {{steps: 6, batch_size: 10, log_every: 2, checkpoint_every: 3, eval_every: 3, warmup_steps: 2, device: cpu}}
search: {{num_beams: 2, extra_length: 3}}
report: {{samples: 3, resamples: 100}}
""",
        encoding="utf-8",
    )
    return file


@pytest.fixture(scope="session")
def translation_run(translation_recipe, command, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "words"
    result = command("train", translation_recipe, "--output", place, "--quiet")
    assert result.exit_code == 0, result.output
    assert "model: 6 steps" in result.output and "baseline: 6 steps" in result.output
    return place
