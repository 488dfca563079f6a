"""Labelled texts as the readers of the built-in data sets hand them on, and how they are split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from probattn.data.identity import SPLITS, Split, first_of_each, split_of, text_key


class LabelledText(NamedTuple):
    r"""A text with the index of its class and, where the task is about pairs, the second text.

    Example:
        >>> LabelledText("A man sleeps.", 1, "A person sleeps.").key
        'amansleeps\napersonsleeps'
    """

    text: str
    label: int
    pair: str | None = None

    @property
    def key(self) -> str:
        """Its identity, see :func:`~probattn.data.identity.text_key`."""
        return text_key(self.text, self.pair)


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
    kept: Examples = {}
    for name in reversed(SPLITS):
        kept[name] = [example for example in unrepeated(split[name]) if example.key not in seen]
        seen.update(example.key for example in kept[name])
    return kept


def unrepeated(examples: list[LabelledText]) -> list[LabelledText]:
    """The first of each text."""
    return [examples[row] for row in first_of_each(example.key for example in examples)]
