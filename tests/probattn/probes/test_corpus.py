"""Parallel texts: the words of files, and counts of words."""

import gzip
import unicodedata
from collections import Counter

import pytest

from probattn.data import DataError
from probattn.probes import UNKNOWN, ParallelCorpus, Vocabulary, read_parallel, split_words

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
    ],
)
def test_what_is_no_corpus_is_refused(make, words):
    with pytest.raises(DataError, match=words):
        make()


@pytest.fixture
def pair(tmp_path):
    """Writes the two files."""

    def write(source, target):
        paths = tmp_path / "text.en", tmp_path / "text.de"
        for path, content in zip(paths, (source, target), strict=True):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return paths

    return write


def test_words_are_lowered_and_parted_from_marks():
    expected = ["two", "dogs", "'", "owner", "-", "-", "größe", "3", ".", "5", "!"]
    assert split_words("Two dogs' owner -- Größe 3.5!") == expected
    assert split_words(" \t") == []


def test_marks_belong_to_their_letters():
    assert split_words(unicodedata.normalize("NFD", "Zwei Häuser!")) == ["zwei", "häuser", "!"]
    assert split_words("İstanbul") == ["i\u0307stanbul"]
    assert split_words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert split_words("می\u200cخواهم") == ["می\u200cخواهم"]


def test_it_reads_lines(pair):
    found = read_parallel(*pair("The house.\r\nA man\r\n", "\ufeffDas Haus.\nEin Mann"))
    assert found == ([["the", "house", "."], ["a", "man"]], [["das", "haus", "."], ["ein", "mann"]])


def test_it_reads_compressed_files_and_splits_as_told(tmp_path):
    for name in ("a.gz", "b.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"One two\nthree\n"))
    source, target = read_parallel(tmp_path / "a.gz", str(tmp_path / "b.gz"), split=str.split)
    assert source == target == [["One", "two"], ["three"]]


def test_a_sentence_may_be_as_long_as_the_limit(pair):
    paths = pair("a b c\n", "d e\n")
    assert read_parallel(*paths, max_length=3) == ([["a", "b", "c"]], [["d", "e"]])
    with pytest.raises(DataError, match="at most 2 words, got 3"):
        read_parallel(*paths, max_length=2)


def test_a_line_without_words_is_refused(pair):
    message = r"text.de line 2: expected a sentence, got none; remove the line from both"
    with pytest.raises(DataError, match=message):
        read_parallel(*pair("a\nb\n", "c\n--\n"), split=lambda line: line.replace("-", "").split())


def test_line_ends_after_the_last_sentence_are_no_sentences(pair):
    assert read_parallel(*pair("a\n\n", "b")) == ([["a"]], [["b"]])


def test_other_line_separators_part_no_lines(pair):
    source, _ = read_parallel(*pair("a\u2028b\x0cc\n", "d\n"))
    assert source == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("", "a\n", "text.en: expected text, got an empty file"),
        ("a\n", " \n\n", "text.de: expected text, got an empty file"),
        ("a\nb\nc\n", "a\nb\n", "a translation for each of 3 sentences, got 2; the two sides must"),
        ("a\n\nc\n", "a\nb\nc\n", r"in every line, got a blank one in line 2 \(.*text.en\)"),
        ("a b c d\n", "a\n", "text.en line 1: expected at most 3 words, got 4; shorten"),
        ("a\nb\n", "a\na b c d e\n", "text.de line 2: expected at most 3 words, got 5"),
        ("a\n", b"a\n\xff\n", "text.de line 2: expected UTF-8 text, got the byte 0xff"),
    ],
)
def test_bad_files_get_one_line(pair, source, target, words):
    with pytest.raises(DataError, match=words) as caught:
        read_parallel(*pair(source, target), max_length=3)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "text.gz").write_text("not compressed")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"one two\n" * 50)[:-10])
    for name, words in (
        ("missing", "no such file"),
        ("text.gz", "expected a gzip file"),
        ("cut.gz", "expected a gzip file"),
        (".", "expected a file, got a folder"),
    ):
        with pytest.raises(DataError, match=words):
            read_parallel(tmp_path / name, tmp_path / name)


@pytest.mark.parametrize("length", [0, 2.5, True, "3"])
def test_a_limit_that_is_none_is_refused(pair, length):
    with pytest.raises(ValueError, match=r"max_length: expected an integer >= 1, got"):
        read_parallel(*pair("a", "b"), max_length=length)
