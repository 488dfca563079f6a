"""Parallel texts: their words, vocabularies and counts, for IBM Model 1 and the bag-of-words proxy."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from probattn.checks import check_integer
from probattn.data import DataError, read_pairs

UNKNOWN = -1
"""The number of a word that is not in a vocabulary."""


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Distinct words, numbered from 0.

    Attributes:
        words: the words in the order of their numbers.

    Example:
        >>> Vocabulary(("the", "house")).encode(["house", "unheard"])
        tensor([ 1, -1])
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        repeated = len(self.words) - len(self.numbers)
        if repeated:
            raise ValueError(f"Vocabulary: expected distinct words, got {repeated} repeated ones")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        words = [*map(repr, self.words[:3]), *(["..."] if len(self) > 3 else [])]
        return f"Vocabulary({len(self):,} words: {', '.join(words)})"

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> Vocabulary:
        """Vocabulary of sentences, in order of first appearance; ``TypeError`` for a sentence that is one string."""
        return cls(tuple(dict.fromkeys(chain.from_iterable(map(_words, sentences)))))

    def encode(self, words: Iterable[str]) -> Tensor:
        """Numbers int64 ``[L]`` of words, :data:`UNKNOWN` for unknown ones; ``TypeError`` if ``words`` is a string."""
        return torch.tensor([self.numbers.get(word, UNKNOWN) for word in _words(words)], dtype=torch.long)


def _words(sentence: Iterable[str]) -> Iterable[str]:
    if isinstance(sentence, str):
        raise TypeError(
            f"Vocabulary: expected a sentence as its words, got the text {sentence!r}; split it first"
        )
    return sentence


JOINERS = "\u200c\u200d"  # characters without width that stand inside words of some scripts


def split_words(text: str) -> list[str]:
    """Splits a string into lower-cased words; each punctuation mark is a separate word.

    A combining mark (an accent, a vowel sign) belongs to the letter before it. The string is normalised to NFC (letter
    and mark composed where Unicode has the composition), so a word has one form.

    Example:
        >>> split_words("Ein Haus, zwei Häuser.")
        ['ein', 'haus', ',', 'zwei', 'häuser', '.']
    """
    return _word().findall(unicodedata.normalize("NFC", text.lower()))


@cache
def _word() -> re.Pattern[str]:
    """Matches a word with its combining marks, which ``re`` does not count as letters, or a single sign."""
    letters = map(chr, range(sys.maxunicode + 1))
    inside = "".join(sign for sign in letters if unicodedata.category(sign).startswith("M")) + JOINERS
    return re.compile(rf"\w[\w{inside}]*|[^\w\s]")


def read_parallel(
    source: str | Path,
    target: str | Path,
    *,
    split: Callable[[str], list[str]] = split_words,
    max_length: int | None = None,
) -> tuple[list[list[str]], list[list[str]]]:
    r"""Reads two files with one sentence per line; line n of one file translates line n of the other.

    Args:
        source: UTF-8 text file of the source sentences, plain or compressed as ``*.gz``.
        target: file of the target sentences, in the same form.
        split: function that splits a line into words.
        max_length: maximum number of words in a sentence; None for no limit.

    Returns:
        Source sentences and target sentences, each a list of words.

    Raises:
        DataError: a file is missing, empty or unreadable, the numbers of lines differ, a line holds no word, or a
            sentence is longer than the limit. The message is one line and names the file and the line.
        ValueError: ``max_length`` is not an integer >= 1.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, text in (("en", "the house\na man\n"), ("de", "das Haus\nein Mann\n")):
        ...     _ = (folder / name).write_text(text)
        >>> read_parallel(folder / "en", folder / "de")
        ([['the', 'house'], ['a', 'man']], [['das', 'haus'], ['ein', 'mann']])
    """
    if max_length is not None:
        check_integer("read_parallel", "max_length", max_length, minimum=1)
    pairs = read_pairs(source, target, (str(source), str(target)))
    sentences = []
    for path, lines in ((source, pairs.sources), (target, pairs.targets)):
        sentences.append([split(line) for line in lines])
        for number, words in enumerate(sentences[-1], start=1):
            if not words:
                raise DataError(
                    f"{path} line {number}: expected a sentence, got none; remove the line from both files"
                )
            if max_length is not None and len(words) > max_length:
                raise DataError(
                    f"{path} line {number}: expected at most {max_length} words, got {len(words)}; "
                    "shorten the sentence, remove the line from both files, or raise max_length"
                )
    return sentences[0], sentences[1]


@dataclass(frozen=True, eq=False, repr=False)
class ParallelCorpus:
    """M sentence pairs as counts of words, without word order, which neither :class:`IBMModel1` nor the proxy uses.

    The proxy is :class:`probattn.probes.BagOfWordsProxy`. :meth:`from_words` makes a corpus.

    Attributes:
        source: counts ``[M, I]`` of each source word in each source sentence, int64 in compressed sparse rows.
        target: counts ``[M, O]`` of each target word in each target sentence, in this form too.
        source_vocabulary: the I source words.
        target_vocabulary: the O target words.

    Example:
        >>> corpus = ParallelCorpus.from_words([["a", "b", "a"]], [["c"]])
        >>> corpus
        ParallelCorpus(1 pair, 2 source words, 1 target word)
        >>> corpus.source.toarray()
        array([[2, 1]])
    """

    source: csr_matrix
    target: csr_matrix
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    def __len__(self) -> int:
        return int(self.source.shape[0])

    def __repr__(self) -> str:
        sizes = (len(self), len(self.source_vocabulary), len(self.target_vocabulary))
        phrases = [
            f"{size:,} {name}{'' if size == 1 else 's'}"
            for size, name in zip(sizes, ("pair", "source word", "target word"), strict=True)
        ]
        return f"ParallelCorpus({', '.join(phrases)})"

    @classmethod
    def from_words(cls, source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> ParallelCorpus:
        """Counts the words of sentence pairs, each a sequence of words; the vocabularies hold the words that occur.

        Raises:
            DataError: no pair, unequal numbers of sentences, or a sentence that has no words or is one string.
        """
        _check_pairs(source, target)
        vocabularies = Vocabulary.of(source), Vocabulary.of(target)
        counts = []
        for sentences, vocabulary in zip((source, target), vocabularies, strict=True):
            words = map(vocabulary.numbers.__getitem__, chain.from_iterable(sentences))
            numbers = np.fromiter(words, dtype=np.int64)
            counts.append(_counts(numbers, [len(sentence) for sentence in sentences], len(vocabulary)))
        return cls(counts[0], counts[1], *vocabularies)


def _check_pairs(source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> None:
    if len(source) != len(target):
        raise DataError(
            f"parallel corpus: expected as many sentences on both sides, got {len(source):,} and {len(target):,}"
        )
    if not len(source):
        raise DataError("parallel corpus: expected sentence pairs, got none")
    for side, sentences in (("source", source), ("target", target)):
        text = next((number for number, sentence in enumerate(sentences) if isinstance(sentence, str)), None)
        if text is not None:
            raise DataError(
                f"parallel corpus: expected every sentence as its words, got the text {side}[{text}]; split it first"
            )
        empty = next((number for number, sentence in enumerate(sentences) if not len(sentence)), None)
        if empty is not None:
            raise DataError(f"parallel corpus: expected words in every sentence, got none in {side}[{empty}]")


def _counts(numbers: np.ndarray, lengths: list[int], size: int) -> csr_matrix:
    starts = np.concatenate(([0], np.cumsum(lengths)))
    counts = csr_matrix((np.ones(len(numbers), dtype=np.int64), numbers, starts), shape=(len(lengths), size))
    counts.sum_duplicates()  # and sorts
    return counts
