"""Parallel text: sentences and their translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probattn.data.errors import DataError
from probattn.data.identity import order
from probattn.data.text_files import read_text


@dataclass(frozen=True)
class SentencePairs:
    """Sentences of one language and their translations into another.

    Args:
        sources: the sentences, N of them, none blank.
        targets: their translations, as many, none blank.
        languages: names of the two languages.
        source: what the pairs are, as messages and reports name it.
        licence: under which terms, as far as known.

    Raises:
        DataError: no pairs, unequal numbers, a blank sentence, or a text in place of sentences.

    Example:
        >>> pairs = SentencePairs(("A dog.", "A cat."), ("Ein Hund.", "Eine Katze."), ("en", "de"), "two animals")
        >>> len(pairs), pairs.rows([1]).targets
        (2, ('Eine Katze.',))
        >>> pairs.reversed().languages
        ('de', 'en')
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    languages: tuple[str, str]
    source: str
    licence: str = "unknown"

    def __post_init__(self) -> None:
        for side, given in (("sources", self.sources), ("targets", self.targets)):
            if isinstance(given, str):
                raise DataError(
                    f"{self.source}: expected {side} as a tuple of sentences, got the text {given!r}"
                )
        if len(self.sources) != len(self.targets):
            raise DataError(
                f"{self.source}: expected a translation for each of {len(self.sources):,} sentences, got "
                f"{len(self.targets):,}; the two sides must have the same number of lines"
            )
        if not self.sources:
            raise DataError(f"{self.source}: expected at least one pair of sentences, got none")
        for language, sentences in zip(self.languages, (self.sources, self.targets), strict=True):
            blank = next((row for row, text in enumerate(sentences, 1) if not text.strip()), None)
            if blank is not None:
                raise DataError(
                    f"{self.source}: expected a sentence in every line, got a blank one in line {blank:,} "
                    f"({language}); remove it on both sides"
                )

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self, rows: Sequence[int]) -> SentencePairs:
        """The pairs at the given places, in the order given."""
        sources, targets = (tuple(side[row] for row in rows) for side in (self.sources, self.targets))
        return replace(self, sources=sources, targets=targets)

    def shortest_first(self) -> list[int]:
        """Places of the pairs by their length in characters: batches of neighbours need little padding."""
        lengths = [
            len(source) + len(target) for source, target in zip(self.sources, self.targets, strict=True)
        ]
        return sorted(range(len(lengths)), key=lengths.__getitem__)

    def reversed(self) -> SentencePairs:
        """The same pairs, to be translated the other way round."""
        return replace(self, sources=self.targets, targets=self.sources, languages=self.languages[::-1])

    def take(self, limit: int | None) -> SentencePairs:
        """At most ``limit`` pairs: a fixed choice that looks random and depends on the sentences alone.

        A larger limit holds the pairs of a smaller one. They stay in their order.

        Raises:
            DataError: a limit below 1.
        """
        if limit is None or limit >= len(self):
            return self
        if limit < 1:
            raise DataError(f"{self.source}: expected a limit >= 1, got {limit}")
        places = [order(*pair) for pair in zip(self.sources, self.targets, strict=True)]
        chosen = sorted(range(len(self)), key=lambda row: (places[row], row))[:limit]
        return self.rows(sorted(chosen))


@dataclass(frozen=True)
class ParallelSplits:
    """Sentence pairs to train on, to choose by and to measure on.

    Attributes:
        train: for training.
        validation: for choosing.
        test: for measuring.
    """

    train: SentencePairs
    validation: SentencePairs
    test: SentencePairs

    def roles(self) -> dict[str, SentencePairs]:
        """The three by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def read_pairs(
    source: Path | str, target: Path | str, languages: tuple[str, str] = ("source", "target")
) -> SentencePairs:
    """Reads parallel text: two files of UTF-8 text, a sentence a line, the same number of lines.

    Args:
        source: file of the sentences; ending in ``.gz``, it is unpacked.
        target: file of their translations, likewise.
        languages: names of the two languages.

    Returns:
        The pairs, in the order of the lines, without space around them.

    Raises:
        DataError: a file that is missing, empty, damaged or not UTF-8; unequal numbers of lines; a blank line.
    """
    files = Path(source).expanduser(), Path(target).expanduser()
    sources, targets = (_lines(file) for file in files)
    return SentencePairs(sources, targets, languages, " and ".join(map(str, files)))


def _lines(path: Path) -> tuple[str, ...]:
    # Not splitlines(), which breaks a sentence at characters such as U+2028 and so shifts one side against the other.
    return tuple(line.strip() for line in read_text(path).rstrip("\r\n").split("\n"))
