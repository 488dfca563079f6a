"""Identity of texts: when two texts count as equal, and to which split a text belongs."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Sized
from typing import Literal, NamedTuple, Self, get_args

from probattn.checks import shown
from probattn.data.errors import DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
_MARKS = re.compile(r"[\W_]+")
_ASCII_MARKS = bytes(code for code in range(128) if not chr(code).isalnum())


def text_key(text: str, pair: str | None = None) -> str:
    r"""Identity of a text: its letters and digits in lower case; texts with the same key count as equal.

    A text of punctuation only is its own key. The key of a pair consists of the keys of both texts, in order.

    Args:
        text: the text.
        pair: the second text of a pair.

    Returns:
        The key; that of a pair has a line break between its parts, which contain none.

    Example:
        >>> text_key("It isn't  GOOD .") == text_key("it is n't good")
        True
        >>> text_key("!!"), text_key("??")
        ('!!', '??')
        >>> text_key("One.", "Two!")
        'one\ntwo'
    """
    return _key(text) if pair is None else f"{_key(text)}\n{_key(pair)}"


def _key(text: str) -> str:
    if text.isascii():  # the same, ten times as fast
        return text.lower().encode("ascii").translate(None, _ASCII_MARKS).decode("ascii") or text.strip()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _MARKS.sub("", folded) or folded.strip()


def position(text: str, salt: str, pair: str | None = None) -> float:
    """A number in [0, 1), uniform over texts, a function of :func:`text_key` and of ``salt`` alone."""
    digest = hashlib.sha256(f"{salt}\n{text_key(text, pair)}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def split_of(
    text: str, validation: float = 0.1, test: float = 0.1, *, pair: str | None = None, salt: str = "split"
) -> Split:
    """The split of a text by the hash of its :func:`text_key`: equal texts are always in the same split.

    Args:
        text: the text.
        validation: share of texts in "validation", in [0, 1].
        test: share of texts in "test", in [0, 1].
        pair: the second text of a pair.
        salt: changes the hash. To split the training part of an earlier split again, use another salt; with the same
            salt and shares none of its texts would be held out.

    Returns:
        "train", "validation" or "test".
    """
    quantile = position(text, salt, pair)
    if quantile < test:
        return "test"
    return "validation" if quantile < test + validation else "train"


def order(text: str, pair: str | None = None) -> float:
    """Place of a text, or a pair of texts, in a fixed shuffled order, independent of its split."""
    return position(text, "order", pair)


def first_of_each(keys: Iterable[str]) -> list[int]:
    """Places of the keys that have not come before."""
    seen: dict[str, int] = {}
    for row, key in enumerate(keys):
        seen.setdefault(key, row)
    return list(seen.values())


def by_length(texts: Iterable[Sized]) -> list[int]:
    """Numbers of texts, the shortest first."""
    lengths = list(map(len, texts))
    return sorted(range(len(lengths)), key=lengths.__getitem__)


class Sampled(ABC):
    """A data set of rows, from which a fixed choice can be taken."""

    source: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def at(self, indices: Sequence[int], /) -> Self:
        """The rows of these numbers, in the order given."""

    @abstractmethod
    def _identities(self) -> Iterable[tuple[str, str | None]]:
        """The text, or pair of texts, by which each row is chosen."""

    def take(self, limit: int | None) -> Self:
        """At most ``limit`` rows, those of the smallest hashes of their texts, in their order.

        A larger limit holds the rows of a smaller one, in data of any order. ``DataError`` for a limit below 1.
        """
        return self if limit is None or limit >= len(self) else self.at(self.choice(limit))

    def choice(self, limit: int) -> list[int]:
        """Numbers of the rows that :meth:`take` takes, rising; ``DataError`` for a limit below 1."""
        if limit < 1:
            raise DataError(f"{self.source}: expected a limit >= 1, got {limit}")
        ranks = [order(text, pair) for text, pair in self._identities()]
        return sorted(sorted(range(len(ranks)), key=lambda row: (ranks[row], row))[:limit])

    def shortest_first(self) -> list[int]:
        """Numbers of the rows by their length in characters: batches of neighbours need little padding."""
        return by_length(text + (pair or "") for text, pair in self._identities())


class LabelledText(NamedTuple):
    """A text, the index of its class and, where the task is about pairs, the second text."""

    text: str
    label: int
    pair: str | None = None

    @property
    def key(self) -> str:
        """Its identity, see :func:`text_key`."""
        return text_key(self.text, self.pair)


def class_index(label: str, classes: Sequence[str], where: str) -> int:
    """The index of a class, given by it or by its name in any case; ``DataError`` for any other label."""
    if label.isdecimal() and int(label) < len(classes):
        return int(label)
    if label.lower() not in classes:
        raise DataError(f"{where}: expected a label in {', '.join(classes)}, got {shown(label)}")
    return classes.index(label.lower())


Examples = dict[Split, list[LabelledText]]
"""Labelled texts by split."""


def by_hash(examples: Iterable[LabelledText], validation: float = 0.1, test: float = 0.1) -> Examples:
    """Splits examples by their texts, the first of repeated ones only."""
    split: Examples = {name: [] for name in SPLITS}
    for example in unrepeated(list(examples)):
        split[split_of(example.text, validation, test, pair=example.pair)].append(example)
    return split


def disjoint(split: Examples) -> Examples:
    """Drops repeated texts; a text in two splits stays in the later one (test, validation, train)."""
    seen: set[str] = set()
    distinct: Examples = {}
    for name in reversed(SPLITS):
        examples = unrepeated(split.get(name, []))
        distinct[name] = [example for example in examples if example.key not in seen]
        seen.update(example.key for example in distinct[name])
    return distinct


def unrepeated(examples: list[LabelledText]) -> list[LabelledText]:
    """The first of each text."""
    return [examples[row] for row in first_of_each(example.key for example in examples)]
