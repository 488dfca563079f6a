"""Reading parallel files: what they hold, and one clear line for what they should not."""

from __future__ import annotations

import gzip
import unicodedata

import pytest

from probattn.data import DataError
from probattn.probes import read_parallel, split_words


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
    assert split_words("Two dogs' owner -- Größe 3.5!") == [
        "two",
        "dogs",
        "'",
        "owner",
        "-",
        "-",
        "größe",
        "3",
        ".",
        "5",
        "!",
    ]
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


def test_other_line_separators_part_no_lines(pair):
    source, _ = read_parallel(*pair("a\u2028b\x0cc\n", "d\n"))
    assert source == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("", "a\n", "text.en: expected one sentence a line, got an empty file"),
        ("a\n", " \n\n", "text.de: expected one sentence a line, got an empty file"),
        ("a\nb\nc\n", "a\nb\n", "expected as many lines in both, got 3 and 2"),
        ("a\n\nc\n", "a\nb\nc\n", "text.en line 2: expected a sentence, got none"),
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
        (".", "cannot be read"),
    ):
        with pytest.raises(DataError, match=words):
            read_parallel(tmp_path / name, tmp_path / name)


@pytest.mark.parametrize("length", [0, 2.5, True, "3"])
def test_a_limit_that_is_none_is_refused(pair, length):
    with pytest.raises(ValueError, match=r"max_length: expected an integer >= 1, got"):
        read_parallel(*pair("a", "b"), max_length=length)
