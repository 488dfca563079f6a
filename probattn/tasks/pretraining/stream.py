"""Texts to pre-train on: a stream that is read from files or named data sets, and what is held out of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from probattn.checks import shortened
from probattn.data import BUILT_IN, DataError, Split, load_multi30k, split_of
from probattn.data.files import read_lines
from probattn.data.identity import SPLITS, first_of_each, order, text_key
from probattn.files.durable import digest
from probattn.models.electra import draw_masked
from probattn.tasks.networks import in_batches

MULTI30K = "multi30k_en"
"""English sentences of Multi30k's training part."""
NAMED = (*BUILT_IN, MULTI30K)
"""Data sets that can be named; of each the training part is read."""
SUFFIXES = (".txt", ".txt.gz")
CHUNK = 256
"""Texts that are tokenized at once."""
SALT = "pre-training"
"""Of what is held out, another than that of named data sets, whose training parts are what it left."""
SAMPLE = 10_000
"""Training texts of which the passages are counted, where there are so many; at most twice as many are."""

Row = dict[str, list[int]]


@dataclass(frozen=True)
class Reading:
    """Digest and number of all training texts, a sample of them at equal distances, and the texts that are held out."""

    digest: str
    number: int
    sample: Sequence[str]
    held_out: Mapping[Split, Sequence[str]]


@dataclass(frozen=True)
class TextStream:
    """Texts of names of :data:`NAMED`, of files with a text a line, or of folders; its letters decide a text's part."""

    sources: tuple[str, ...]
    validation: float
    test: float

    def __str__(self) -> str:
        """The sources by their names."""
        return shortened(", ".join(Path(source).name for source in self.sources), 100)

    def texts(self) -> Iterator[str]:
        """All texts, read as they are asked for, without white space around them; ``DataError`` for none."""
        empty = True
        for source in self.sources:
            for text in self._named[source] if source in self._named else _lines_below(Path(source)):
                empty = False
                yield text
        if empty:
            raise DataError(f"{self}: expected texts, got none")

    def training(self) -> Iterator[str]:
        """The texts that are not held out."""
        return (text for text in self.texts() if self.split(text) == "train")

    def split(self, text: str) -> Split:
        """The part of a text."""
        return split_of(text, self.validation, self.test, salt=SALT)

    @cached_property
    def _named(self) -> Mapping[str, Sequence[str]]:
        """Texts of the data sets that have a name, which are kept."""
        return {source: _of_name(source) for source in self.sources if source in NAMED}

    @cached_property
    def read(self) -> Reading:
        """What one pass over all texts gives; ``DataError`` as :meth:`texts`, or for too few texts to hold some out."""
        hasher, number, every = hashlib.sha256(SALT.encode()), 0, 1
        sample: list[str] = []
        held_out: dict[Split, list[str]] = {"validation": [], "test": []}
        for text in self.texts():
            hasher.update(text.encode("utf-8", "surrogatepass") + b"\0")
            split = self.split(text)
            if split != "train":
                held_out[split].append(text)
                continue
            if number % every == 0:
                sample.append(text)
            if len(sample) == 2 * SAMPLE:
                sample, every = sample[::2], 2 * every
            number += 1
        counts = {"train": number} | {split: len(texts) for split, texts in held_out.items()}
        few = next((split for split in SPLITS if not counts[split]), None)
        if few is not None:
            raise DataError(
                f"{self}: {sum(counts.values()):,} texts are too few, none is left for {few}; give "
                "more texts or change pretraining.validation_fraction and test_fraction"
            )
        return Reading(hasher.hexdigest()[:16], number, sample, held_out)

    def held_out(self, split: Split) -> list[str]:
        """The different texts of a part that is held out, in a fixed order."""
        texts = self.read.held_out[split]
        return sorted((texts[index] for index in first_of_each(map(text_key, texts))), key=order)


def _of_name(name: str) -> Sequence[str]:
    """Texts of the training part of a data set; of pairs both."""
    if name == MULTI30K:
        return load_multi30k().train.sources
    data = BUILT_IN[name].load("train")
    return (*data.texts, *(data.pairs or ()))


def _lines_below(path: Path) -> Iterator[str]:
    """The lines of a file that are not blank, or of all files in a folder, by name."""
    path = path.expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
        if not files:
            raise DataError(f"{path}: expected files that end in {' or '.join(SUFFIXES)}, got none")
        yield from chain.from_iterable(map(_lines_below, files))
        return
    if not path.name.endswith(SUFFIXES):
        raise DataError(
            f"{path}: expected a file that ends in {' or '.join(SUFFIXES)}, with a text a line, a folder of such "
            f"files, or one of {', '.join(NAMED)}"
        )
    yield from filter(None, map(str.strip, read_lines(path)))


def passages(texts: Iterable[str], tokenizer: Any, length: int, *, join: bool = False) -> Iterator[Row]:
    """Rows of at most ``length`` tokens with [CLS] and [SEP]; with ``join`` a text goes on where the last one ended."""
    begin, end, room = tokenizer.cls_token_id, tokenizer.sep_token_id, length - 2

    def row(tokens: list[int]) -> Row:
        return {"original_ids": [begin, *tokens, end], "attention_mask": [1] * (len(tokens) + 2)}

    waiting: list[int] = []
    for ids in filter(None, _tokenized(texts, tokenizer)):
        waiting += [end, *ids] if waiting else ids
        ready = len(waiting) // room * room if join else len(waiting)
        for start in range(0, ready, room):
            yield row(waiting[start : start + room])
        del waiting[:ready]
    if waiting:
        yield row(waiting)


def _tokenized(texts: Iterable[str], tokenizer: Any) -> Iterator[list[int]]:
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    for chunk in in_batches(texts, CHUNK):
        yield from tokenizer(chunk, return_attention_mask=False, **options)["input_ids"]


def special_ids(tokenizer: Any) -> set[int]:
    """Tokens that are never masked: the special ones, but for that of what is unknown."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def with_masks(row: Row, special: set[int], share: float) -> Row:
    """A row with ``masked`` tokens, a share of those that are not special, which are a function of its tokens."""
    ids = torch.tensor([row["original_ids"]])
    draw = torch.Generator().manual_seed(int(digest([repr(row["original_ids"])]), 16))
    candidates = ~torch.isin(ids, torch.tensor(sorted(special)))
    return {**row, "masked": draw_masked(candidates, share, draw)[0].tolist()}


class PassageStream:
    """Training passages, shuffled within a buffer of texts: their order is a function of the seed and the epoch."""

    def __init__(
        self, texts: TextStream, tokenizer: Any, length: int, *, join: bool, buffer: int, seed: int
    ) -> None:
        self.texts, self.tokenizer, self.length, self.join = texts, tokenizer, length, join
        self.buffer, self.seed, self._epoch = buffer, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Says which pass over the texts begins, from 0."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Row]:
        draw = random.Random(f"{self.seed} {self._epoch}")
        return self._cut(_shuffled(self.texts.training(), self.buffer, draw))

    def __len__(self) -> int:
        """Number of passages, as the sample suggests: exact where that has all texts and these are not joined."""
        read = self.texts.read
        return round(len(self.counts) * read.number / len(read.sample))

    @cached_property
    def counts(self) -> Sequence[tuple[int, int]]:
        """Tokens of each passage of the sample, all and those that can be masked; ``DataError`` for none."""
        special = special_ids(self.tokenizer)
        lengths = [
            (len(row["original_ids"]), sum(token not in special for token in row["original_ids"]))
            for row in self._cut(self.texts.read.sample)
        ]
        if not lengths:
            raise DataError(f"{self.texts}: expected texts with tokens, got none")
        return lengths

    def _cut(self, texts: Iterable[str]) -> Iterator[Row]:
        return passages(texts, self.tokenizer, self.length, join=self.join)


def _shuffled(texts: Iterator[str], buffer: int, draw: random.Random) -> Iterator[str]:
    waiting: list[str] = []
    for text in texts:
        if len(waiting) < buffer:
            waiting.append(text)
            continue
        index = draw.randrange(buffer)
        drawn, waiting[index] = waiting[index], text
        yield drawn
    draw.shuffle(waiting)
    yield from waiting
