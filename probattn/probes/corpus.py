"""Parallel texts as counts of words: what IBM Model 1 and the bag-of-words proxy see of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from probattn.data import DataError
from probattn.probes.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False, repr=False)
class ParallelCorpus:
    """Sentence pairs as counts of words, whose order neither IBM Model 1 nor the proxy model looks at.

    Made by :meth:`from_words` or :meth:`from_ids`.

    Attributes:
        source: counts ``[M, I]`` of each source word in each sentence, int64 in compressed rows.
        target: counts ``[M, O]``, likewise.
        source_vocabulary: the I words.
        target_vocabulary: the O words.

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
        parts = [
            f"{size:,} {name}{'' if size == 1 else 's'}"
            for size, name in zip(sizes, ("pair", "source word", "target word"), strict=True)
        ]
        return f"ParallelCorpus({', '.join(parts)})"

    @classmethod
    def from_words(cls, source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> ParallelCorpus:
        """Counts the words of sentence pairs; the vocabularies are theirs.

        Args:
            source: sentences as words.
            target: their translations, as many.

        Returns:
            The corpus.

        Raises:
            DataError: no pair, unequal numbers of sentences, a sentence without words, or one that is a single text.
        """
        _check_pairs(source, target)
        vocabularies = Vocabulary.of(source), Vocabulary.of(target)
        counts = []
        for sentences, vocabulary in zip((source, target), vocabularies, strict=True):
            numbers = np.fromiter(
                map(vocabulary.numbers.__getitem__, chain.from_iterable(sentences)), dtype=np.int64
            )
            counts.append(_counts(numbers, [len(each) for each in sentences], len(vocabulary)))
        return cls(counts[0], counts[1], *vocabularies)

    @classmethod
    def from_ids(
        cls,
        source: Sequence[Tensor],
        target: Sequence[Tensor],
        source_size: int,
        target_size: int,
    ) -> ParallelCorpus:
        """Counts the numbers of tokens that a tokenizer gave; the vocabularies are the numbers, written out.

        Args:
            source: sentences as integers ``[L]`` in 0 .. source_size - 1, without padding.
            target: their translations, as many.
            source_size: I.
            target_size: O.

        Returns:
            The corpus.

        Raises:
            DataError: no pair, unequal numbers of sentences, a sentence that is no tensor of integers ``[L]`` or has no
                tokens, or a number out of range.

        Example:
            >>> pairs = [torch.tensor([0, 2])], [torch.tensor([1])]
            >>> ParallelCorpus.from_ids(*pairs, 3, 2).target.toarray()
            array([[0, 1]])
        """
        _check_pairs(source, target)
        sides = ((source, source_size, "source"), (target, target_size, "target"))
        counts, vocabularies = [], []
        for sentences, size, side in sides:
            _check_tokens(side, sentences)
            numbers = torch.cat(list(sentences)).numpy(force=True)
            if numbers.min() < 0 or numbers.max() >= size:
                wrong = int(numbers.min()) if numbers.min() < 0 else int(numbers.max())
                raise DataError(f"{side} tokens: expected numbers in 0 .. {size - 1}, got {wrong}")
            counts.append(_counts(numbers, [len(each) for each in sentences], size))
            vocabularies.append(Vocabulary(tuple(map(str, range(size)))))
        return cls(counts[0], counts[1], vocabularies[0], vocabularies[1])


def _check_pairs(source: Sequence[Sequence[str] | Tensor], target: Sequence[Sequence[str] | Tensor]) -> None:
    if len(source) != len(target):
        raise DataError(
            f"parallel corpus: expected as many sentences on both sides, got {len(source):,} and {len(target):,}"
        )
    if not len(source):
        raise DataError("parallel corpus: expected sentence pairs, got none")
    for side, sentences in (("source", source), ("target", target)):
        text = next((number for number, each in enumerate(sentences) if isinstance(each, str)), None)
        if text is not None:
            raise DataError(
                f"parallel corpus: expected every sentence as its words, got the text {side}[{text}]; split it first"
            )
        empty = next((number for number, each in enumerate(sentences) if not len(each)), None)
        if empty is not None:
            raise DataError(f"parallel corpus: expected words in every sentence, got none in {side}[{empty}]")


def _check_tokens(side: str, sentences: Sequence[Tensor]) -> None:
    for number, each in enumerate(sentences):
        if not isinstance(each, Tensor):
            raise DataError(
                f"{side}[{number}]: expected a tensor of integers [L], got {type(each).__name__}; make it one"
            )
        if each.ndim != 1 or each.is_floating_point() or each.is_complex() or each.dtype == torch.bool:
            raise DataError(
                f"{side}[{number}]: expected a tensor of integers [L], got {each.dtype} {list(each.shape)}"
            )


def _counts(numbers: np.ndarray, lengths: list[int], size: int) -> csr_matrix:
    starts = np.concatenate(([0], np.cumsum(lengths)))
    counts = csr_matrix((np.ones(len(numbers), dtype=np.int64), numbers, starts), shape=(len(lengths), size))
    counts.sum_duplicates()  # and sorts
    return counts
