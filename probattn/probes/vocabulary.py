"""Words and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

UNKNOWN = -1
"""The number of a word that is not in a vocabulary."""


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Words and their numbers, 0 to len - 1.

    Attributes:
        words: distinct words, each at the place of its number.

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
        shown = [*map(repr, self.words[:3]), *(["..."] if len(self) > 3 else [])]
        return f"Vocabulary({len(self):,} words: {', '.join(shown)})"

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> Vocabulary:
        """The vocabulary of some sentences, in the order of first appearance.

        Raises:
            TypeError: a sentence is a text and not its words.
        """
        return cls(tuple(dict.fromkeys(chain.from_iterable(map(_words, sentences)))))

    def encode(self, words: Iterable[str]) -> Tensor:
        """Numbers int64 ``[L]`` of the words, :data:`UNKNOWN` for one that is not there.

        Raises:
            TypeError: a text in place of its words.
        """
        return torch.tensor([self.numbers.get(word, UNKNOWN) for word in _words(words)], dtype=torch.long)


def _words(sentence: Iterable[str]) -> Iterable[str]:
    if isinstance(sentence, str):
        raise TypeError(
            f"Vocabulary: expected a sentence as its words, got the text {sentence!r}; split it first"
        )
    return sentence
