"""Parallel text: sentences and their translations, from files and from Multi30k, and batches of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from probattn.data.errors import DataError, warn_long
from probattn.data.files import data_folder, read_text
from probattn.data.identity import Sampled
from probattn.data.subwords import Subwords
from probattn.data.tokens import OnLong, TokenizedRows


@dataclass(frozen=True)
class SentencePairs(Sampled):
    """Sentences of one language and their translations into another.

    Args:
        sources: N sentences, none blank.
        targets: N translations, none blank.
        languages: names of source and target language.
        source: description of the pairs in messages and reports.
        licence: licence of the texts, if known.

    Raises:
        DataError: there are no pairs, unequal numbers of sentences, a blank sentence, or a string instead of sentences.

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
        for side, texts in (("sources", self.sources), ("targets", self.targets)):
            if isinstance(texts, str):
                raise DataError(
                    f"{self.source}: expected {side} as a tuple of sentences, got the text {texts!r}"
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
        """The pairs with these indices, in this order."""
        sources, targets = (tuple(side[row] for row in rows) for side in (self.sources, self.targets))
        return replace(self, sources=sources, targets=targets)

    at = rows

    def _identities(self) -> Iterable[tuple[str, str]]:
        return zip(self.sources, self.targets, strict=True)

    def reversed(self) -> SentencePairs:
        """The same pairs with source and target exchanged."""
        return replace(self, sources=self.targets, targets=self.sources, languages=self.languages[::-1])


@dataclass(frozen=True)
class ParallelSplits:
    """Sentence pairs for training, validation and testing.

    Attributes:
        train: training pairs.
        validation: validation pairs.
        test: test pairs.
    """

    train: SentencePairs
    validation: SentencePairs
    test: SentencePairs

    def roles(self) -> dict[str, SentencePairs]:
        """The splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def read_pairs(
    source: Path | str, target: Path | str, languages: tuple[str, str] = ("source", "target")
) -> SentencePairs:
    """Reads parallel text: two files of UTF-8 text with the same number of lines, one sentence per line.

    Args:
        source: file of the sentences, or its gzip-compressed form ending in ``.gz``.
        target: file of their translations, or its compressed form.
        languages: names of source and target language.

    Returns:
        The pairs in the order of the lines, without surrounding space.

    Raises:
        DataError: a file is missing, empty, damaged or not UTF-8, the numbers of lines differ, or a line is blank.
    """
    files = Path(source).expanduser(), Path(target).expanduser()
    sources, targets = (_lines(file) for file in files)
    return SentencePairs(sources, targets, languages, " and ".join(map(str, files)))


def _lines(path: Path) -> tuple[str, ...]:
    # Not splitlines(), which breaks a sentence at characters such as U+2028 and so shifts one side against the other.
    return tuple(line.strip() for line in read_text(path).rstrip("\r\n").split("\n"))


MULTI30K_ORIGIN = "https://github.com/multi30k/dataset (data/task1/raw)"
MULTI30K_LICENCE = (
    "CC BY-NC-SA 4.0; cite Elliott et al. 2016 (Multi30K: Multilingual English-German Image Descriptions)"
)
MULTI30K_FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
Language = Literal["en", "de"]


def load_multi30k(
    folder: Path | str | None = None,
    *,
    source: Language = "en",
    target: Language = "de",
    test: str = "test_2016_flickr",
) -> ParallelSplits:
    """Reads Multi30k: 29,000 training pairs, 1,014 validation pairs, and one of its test sets.

    Args:
        folder: folder of the files ``{train,val,test_2016_flickr}.{en,de}.gz``; by default ``multi30k`` in the folder
            that ``PROBATTN_DATA`` names.
        source: source language.
        target: target language.
        test: the test set: ``test_2016_flickr`` (1,000 pairs), ``test_2017_flickr``, ``test_2017_mscoco``, or another
            whose files exist.

    Returns:
        The three splits.

    Raises:
        DataError: a language is unknown, or both are the same; a file is missing or damaged.
    """
    languages = get_args(Language)
    if source not in languages or target not in languages or source == target:
        raise DataError(f"multi30k: expected two of {', '.join(languages)}, got {source!r} and {target!r}")
    path = (
        data_folder("multi30k", "multi30k", MULTI30K_ORIGIN) if folder is None else Path(folder).expanduser()
    )
    splits = MULTI30K_FILES | {"test": test}
    files = [f"{name}.{language}.gz" for name in splits.values() for language in languages]
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        raise DataError(f"multi30k: {path} lacks {', '.join(missing)}; {MULTI30K_ORIGIN} has the files")
    return ParallelSplits(
        **{role: _multi30k_split(path, name, source, target) for role, name in splits.items()}
    )


def _multi30k_split(folder: Path, name: str, source: Language, target: Language) -> SentencePairs:
    files = [folder / f"{name}.{language}.gz" for language in (source, target)]
    pairs = read_pairs(files[0], files[1], (source, target))
    return replace(pairs, source=f"multi30k {source}-{target} ({name})", licence=MULTI30K_LICENCE)


IGNORED = -100
"""Label of a position that is padding."""


class TokenizedPairs(TokenizedRows):
    """Sentence pairs as subwords, tokenized once, without padding.

    A row has ``input_ids``, the source with its end token, and ``labels``, the target with its end token;
    :class:`PairCollate` makes batches of rows.

    Args:
        pairs: the sentences.
        subwords: vocabulary of both languages.
        max_length: maximum number of tokens of a sentence with its end token, >= 2.
        on_long: what happens to longer sentences: "truncate" keeps their beginning and warns with their number, once
            per source and process; "refuse" raises.

    Raises:
        DataError: ``max_length`` is below 2, or sentences are too long and ``on_long="refuse"``.

    Warns:
        DataWarning: the number of truncated sentences.
    """

    counted = ("input_ids", "labels")

    def __init__(
        self, pairs: SentencePairs, subwords: Subwords, *, max_length: int = 256, on_long: OnLong = "truncate"
    ) -> None:
        if max_length < 2:
            raise DataError(f"max_length: expected at least 2 tokens (one is the end), got {max_length}")
        self.pairs = pairs
        refuse, cut = on_long == "refuse", []
        for language, texts in zip(pairs.languages, (pairs.sources, pairs.targets), strict=True):
            side = [[*subwords.encode(text), Subwords.END] for text in texts]
            what, lengths = f"{pairs.source}, {language}", list(map(len, side))
            unit = "tokens with their end"
            warn_long(what, lengths, max_length, "sentences", unit, refuse=refuse, numbered=True)
            cut.append([cut_to(tokens, max_length) for tokens in side])
        self._rows = [{"input_ids": source, "labels": target} for source, target in zip(*cut, strict=True)]


def cut_to(tokens: list[int], max_length: int) -> list[int]:
    """Tokens, the last of which is the end, or their beginning and the end where they are too many."""
    return tokens if len(tokens) <= max_length else [*tokens[: max_length - 1], tokens[-1]]


class PairCollate:
    """Makes a batch of rows of :class:`TokenizedPairs`; source and target are padded on the right to the longest.

    Example:
        >>> batch = PairCollate()([{"input_ids": [5, 3], "labels": [6, 7, 3]}, {"input_ids": [4, 8, 3], "labels": [3]}])
        >>> batch["decoder_input_ids"]
        tensor([[2, 6, 7],
                [2, 0, 0]])
        >>> batch["labels"]
        tensor([[   6,    7,    3],
                [   3, -100, -100]])
    """

    def __call__(self, rows: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Tensor]:
        """Pads and stacks the ``input_ids`` and ``labels`` of at least one row.

        Returns int64 tensors: ``input_ids`` and ``attention_mask`` ``[B, S]``; ``decoder_input_ids`` (the target
        shifted by one, "begin" first), ``decoder_attention_mask`` and ``labels`` (-100 at padding) ``[B, T]``.
        """
        sources, targets = ([row[name] for row in rows] for name in ("input_ids", "labels"))
        shifted = [[Subwords.BEGIN, *target[:-1]] for target in targets]
        return {
            "input_ids": padded(sources, Subwords.PAD),
            "attention_mask": padded([[1] * len(tokens) for tokens in sources], 0),
            "decoder_input_ids": padded(shifted, Subwords.PAD),
            "decoder_attention_mask": padded([[1] * len(tokens) for tokens in targets], 0),
            "labels": padded(targets, IGNORED),
        }


def padded(rows: Sequence[Sequence[Any]], fill: Any, minimum: int = 0) -> Tensor:
    """Rows as long as the longest, ``minimum`` at least, filled up on the right."""
    longest = max([minimum, *map(len, rows)])
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
