"""Labelled texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from probattn.data.errors import DataError
from probattn.data.identity import Sampled, text_key


@dataclass(frozen=True)
class TextDataset(Sampled):
    r"""Texts with their classes and their source.

    Args:
        texts: N texts, none blank.
        labels: class of each text, an index into ``label_names``; None if classes are unknown or not used.
        label_names: names of the classes, in the order of a network's outputs; empty without labels.
        source: description of the data set in messages and reports.
        licence: licence of the texts, if known.
        pairs: the second text of each, if the task is about pairs of texts; None for single texts.

    Raises:
        DataError: there are no texts, or labels or second texts do not fit.

    Example:
        >>> data = TextDataset(("good", "bad", "fine"), (1, 0, 1), ("negative", "positive"), "three words")
        >>> len(data), data.counts()
        (3, {'negative': 1, 'positive': 2})
        >>> data.take(2).texts
        ('good', 'fine')
        >>> TextDataset(("A man.",), None, (), "one pair", pairs=("A person.",)).keys()
        frozenset({'aman\naperson'})
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...] | None
    label_names: tuple[str, ...]
    source: str
    licence: str = "unknown"
    pairs: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.texts:
            raise DataError(f"{self.source}: expected at least one text, got none")
        if self.pairs is not None and len(self.pairs) != len(self.texts):
            raise DataError(f"{self.source}: expected {len(self.texts)} second texts, got {len(self.pairs)}")
        if self.labels is None:
            return
        if len(self.labels) != len(self.texts):
            raise DataError(f"{self.source}: expected {len(self.texts)} labels, got {len(self.labels)}")
        outside = [label for label in self.labels if not 0 <= label < len(self.label_names)]
        if outside:
            raise DataError(
                f"{self.source}: expected labels in 0..{len(self.label_names) - 1}, got {outside[0]}"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def counts(self) -> dict[str, int]:
        """Number of texts of each class, by name; empty without labels."""
        counted = Counter(self.labels or ())
        return {name: counted[index] for index, name in enumerate(self.label_names)} if self.labels else {}

    def rows(self, rows: Sequence[int]) -> TextDataset:
        """The texts with these indices, in this order."""
        labels = None if self.labels is None else tuple(self.labels[row] for row in rows)
        pairs = None if self.pairs is None else tuple(self.pairs[row] for row in rows)
        return replace(self, texts=tuple(self.texts[row] for row in rows), labels=labels, pairs=pairs)

    at = rows

    def _identities(self) -> Iterator[tuple[str, str | None]]:
        return ((text, self.pair(row)) for row, text in enumerate(self.texts))

    def pair(self, row: int) -> str | None:
        """The second text of a row; None for single texts."""
        return None if self.pairs is None else self.pairs[row]

    def keys(self) -> frozenset[str]:
        """The set of :func:`~probattn.data.text_key` of all texts, or pairs of texts."""
        return frozenset(self._keys())

    def shared_with(self, other: TextDataset | frozenset[str]) -> int:
        """Number of these texts that are also in ``other``, a data set or the ``keys`` of one."""
        return len(self.places_in(other if isinstance(other, frozenset) else other.keys()))

    def places_in(self, keys: Collection[str]) -> list[int]:
        """Indices of the texts whose key is in ``keys``."""
        return [index for index, key in enumerate(self._keys()) if key in keys]

    def copies(self) -> int:
        """Number of texts, or pairs of texts, that are exact copies of an earlier one.

        Example:
            >>> TextDataset(("same", "same", "Same"), None, (), "three words").copies()
            1
        """
        return len(self) - len(set(self._identities()))

    def _keys(self) -> Iterator[str]:
        return (text_key(text, pair) for text, pair in self._identities())

    def require_classes(self) -> TextDataset:
        """Returns the data set if it has two or more classes to learn; ``DataError`` otherwise."""
        if self.labels is None:
            raise DataError(f"{self.source}: expected labels to train on, got texts only")
        present = [name for name, count in self.counts().items() if count]
        if len(present) < 2:
            raise DataError(
                f"{self.source}: expected at least two classes to train on, got one: all {len(self)} labels are "
                f"{present[0]!r}"
            )
        return self
