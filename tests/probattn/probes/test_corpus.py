"""Corpora as counts of words."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from probattn.data import DataError
from probattn.probes import UNKNOWN, ParallelCorpus, Vocabulary

SOURCE = [["a", "man", "and", "a", "dog"], ["dog"], ["a", "house"]]
TARGET = [["ein", "mann", "und", "ein", "hund"], ["hund", "hund"], ["haus"]]


def test_counts_are_those_of_the_sentences():
    corpus = ParallelCorpus.from_words(SOURCE, TARGET)
    assert len(corpus) == 3
    for sentences, counts, vocabulary in (
        (SOURCE, corpus.source, corpus.source_vocabulary),
        (TARGET, corpus.target, corpus.target_vocabulary),
    ):
        assert counts.shape == (3, len(vocabulary))
        for row, words in zip(counts.toarray(), sentences, strict=True):
            assert {vocabulary.words[i]: n for i, n in enumerate(row) if n} == Counter(words)


def test_numbers_of_tokens_serve_as_well():
    words = ParallelCorpus.from_words(SOURCE, TARGET)
    ids = [
        [vocabulary.encode(each) for each in sentences]
        for vocabulary, sentences in ((words.source_vocabulary, SOURCE), (words.target_vocabulary, TARGET))
    ]
    numbers = ParallelCorpus.from_ids(*ids, 10, 8)
    assert (numbers.source.toarray()[:, :5] == words.source.toarray()).all()
    assert numbers.source.shape == (3, 10) and numbers.target.shape == (3, 8)
    assert numbers.source_vocabulary.words[9] == "9"


def test_a_vocabulary_numbers_words_in_order():
    vocabulary = Vocabulary.of(SOURCE)
    assert vocabulary.words == ("a", "man", "and", "dog", "house")
    assert vocabulary.encode(["dog", "cat", "a"]).tolist() == [3, UNKNOWN, 0]
    assert vocabulary.encode([]).shape == (0,)
    assert repr(vocabulary) == "Vocabulary(5 words: 'a', 'man', 'and', ...)"
    assert vocabulary == Vocabulary(vocabulary.words) != Vocabulary(("a",))
    with pytest.raises(ValueError, match="distinct words, got 1 repeated"):
        Vocabulary(("a", "b", "a"))


def test_a_text_in_place_of_words_is_refused():
    with pytest.raises(TypeError, match="got the text 'house'; split it first"):
        Vocabulary.of(SOURCE).encode("house")
    with pytest.raises(TypeError, match="got the text 'a man'"):
        Vocabulary.of(["a man", "a dog"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ParallelCorpus.from_words([], []), "expected sentence pairs, got none"),
        (lambda: ParallelCorpus.from_words(SOURCE, TARGET[:2]), "both sides, got 3 and 2"),
        (lambda: ParallelCorpus.from_words([["a"], []], [["b"], ["c"]]), r"got none in source\[1\]"),
        (
            lambda: ParallelCorpus.from_words([["a"], "a man"], TARGET[:2]),
            r"as its words, got the text source\[1\]; split it first",
        ),
        (lambda: ParallelCorpus.from_words(SOURCE, ["a", "b", "c"]), r"got the text target\[0\]"),
        (
            lambda: ParallelCorpus.from_ids([torch.tensor([3])], [torch.tensor([0])], 3, 3),
            r"in 0 .. 2, got 3",
        ),
        (
            lambda: ParallelCorpus.from_ids([torch.tensor([0])], [torch.tensor([-1])], 3, 3),
            "target .* got -1",
        ),
        (
            lambda: ParallelCorpus.from_ids([torch.tensor([0.7, 1.9])], [torch.tensor([1])], 3, 2),
            r"source\[0\]: expected a tensor of integers \[L\], got torch.float32 \[2\]",
        ),
        (
            lambda: ParallelCorpus.from_ids([torch.tensor([0])], [torch.tensor([True])], 3, 2),
            r"target\[0\]: expected .* got torch.bool",
        ),
        (
            lambda: ParallelCorpus.from_ids([torch.tensor([[0, 1]])], [torch.tensor([1])], 3, 2),
            r"got torch.int64 \[1, 2\]",
        ),
        (lambda: ParallelCorpus.from_ids([[0, 1]], [[1]], 3, 2), r"source\[0\]: .* got list"),
    ],
)
def test_what_is_no_corpus_is_refused(make, words):
    with pytest.raises(DataError, match=words):
        make()
