"""Texts to pre-train on: a stream that is read from files or named data sets, and what is held out of it."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from probattn.checks import shortened
from probattn.data import BUILT_IN, DataError, SentencePairs, Split, load_multi30k, split_of
from probattn.data.files import unreadable
from probattn.data.identity import SPLITS, order

MULTI30K = "multi30k_en"
"""English sentences of Multi30k's training part."""
NAMED = (
    "bbc_news",
    "cola",
    "glue_sst2",
    "imdb",
    "mnli",
    "mrpc",
    MULTI30K,
    "qnli",
    "qqp",
    "rotten_tomatoes",
    "rte",
    "sick",
    "sms_spam",
    "snli",
    "sst2",
    "trec",
)
"""Data sets that can be named; of each the training part is read."""
SUFFIXES = (".txt", ".txt.gz")
CHUNK = 256
"""Texts that are tokenized at once."""
SAMPLE = 10_000
"""Texts of which the passages are counted."""


@dataclass(frozen=True)
class Corpus:
    """Texts of several sources, one after the other; the part of a text is a function of the text.

    Args:
        sources: names of :data:`NAMED`, files with a text a line (.txt, .txt.gz), or folders of such files.
        validation: share of texts that is held out to choose by.
        test: share of texts that is held out to measure on.
    """

    sources: tuple[str, ...]
    validation: float
    test: float

    def __str__(self) -> str:
        """The sources, in words."""
        return shortened(", ".join(self.sources), 200)

    def texts(self) -> Iterator[str]:
        """All texts, read as they are asked for, without white space around them.

        Raises:
            DataError: a source that is not there or cannot be read; no text at all.
        """
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
        return split_of(text, self.validation, self.test)

    @cached_property
    def _named(self) -> Mapping[str, Sequence[str]]:
        """Texts of the data sets that have a name, which are kept."""
        return {source: _of_name(source) for source in self.sources if source in NAMED}

    @cached_property
    def read(self) -> tuple[str, int, Mapping[Split, list[str]]]:
        """A digest of all texts, the number of those to train on, and those that are held out, read once.

        Raises:
            DataError: as :meth:`texts`; too few texts to hold some out.
        """
        hasher, number = hashlib.sha256(), 0
        held: dict[Split, list[str]] = {"validation": [], "test": []}
        for text in self.texts():
            hasher.update(text.encode("utf-8", "surrogatepass") + b"\0")
            split = self.split(text)
            if split == "train":
                number += 1
            else:
                held[split].append(text)
        counts = {"train": number} | {split: len(texts) for split, texts in held.items()}
        few = next((split for split in SPLITS if not counts[split]), None)
        if few is not None:
            total = sum(counts.values())
            raise DataError(
                f"{self}: {total:,} texts are too few, none is left for {few}; give "
                "more texts or change pretraining.validation_fraction and test_fraction"
            )
        return hasher.hexdigest()[:16], number, held

    def held_out(self, split: Split, limit: int | None = None) -> list[str]:
        """The different texts of a part that is held out, or a fixed choice of ``limit`` of them, in a fixed order."""
        found = list(dict.fromkeys(self.read[2][split]))
        return sorted(found, key=order)[:limit]


def _of_name(name: str) -> Sequence[str]:
    """Texts of the training part of a data set; of pairs both."""
    if name == MULTI30K:
        pairs: SentencePairs = load_multi30k().train
        return pairs.sources
    data = BUILT_IN[name].load("train")
    return (*data.texts, *(data.pairs or ()))


def _lines_below(path: Path) -> Iterator[str]:
    """The lines of a file that are not blank, or of all files in a folder, by name."""
    path = path.expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
        if not files:
            raise DataError(f"{path}: expected files that end in {' or '.join(SUFFIXES)}, got none")
        for file in files:
            yield from _lines_below(file)
        return
    if not path.name.endswith(SUFFIXES):
        raise DataError(
            f"{path}: expected a file that ends in {' or '.join(SUFFIXES)}, with a text a line, a folder of such "
            f"files, or one of {', '.join(NAMED)}"
        )
    if not path.exists():
        raise DataError(f"{path}: no such file")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as opened:
            for number, line in enumerate(opened, start=1):
                text = _decoded(line, path, number)
                if text:
                    yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a gzip file, got another or a damaged one ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8").removeprefix("\ufeff").strip()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {number}: expected UTF-8 text, got the byte 0x{line[error.start]:02x}; save the file as UTF-8"
        ) from None


def passages(
    texts: Iterable[str], tokenizer: Any, length: int, *, join: bool = False
) -> Iterator[dict[str, list[int]]]:
    """Cuts texts into passages of at most ``length`` tokens, each between the tokens of its begin and its end.

    Args:
        texts: read as passages are asked for.
        tokenizer: of transformers, with ``cls_token`` and ``sep_token``.
        length: tokens of a passage, the two special ones included.
        join: whether texts go on in the passage of the text before, after a ``sep_token``; a passage then has
            ``length`` tokens, but for the last.

    Returns:
        Rows with ``original_ids``.
    """
    begin, end, room = tokenizer.cls_token_id, tokenizer.sep_token_id, length - 2
    waiting: list[int] = []
    for ids in _tokenized(texts, tokenizer):
        if join:
            waiting += [end, *ids] if waiting else ids
            while len(waiting) >= room:
                yield {"original_ids": [begin, *waiting[:room], end]}
                waiting = waiting[room:]
        else:
            for start in range(0, len(ids), room):
                yield {"original_ids": [begin, *ids[start : start + room], end]}
    if waiting:
        yield {"original_ids": [begin, *waiting, end]}


def _tokenized(texts: Iterable[str], tokenizer: Any) -> Iterator[list[int]]:
    def ids_of(chunk: list[str]) -> Iterable[list[int]]:
        found: Iterable[list[int]] = tokenizer(
            chunk, add_special_tokens=False, verbose=False, return_attention_mask=False
        )["input_ids"]
        return found

    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield from ids_of(chunk)
            chunk = []
    if chunk:
        yield from ids_of(chunk)


class PassageStream:
    """The training passages of a corpus as a stream, which a driver reads in its order and reads again every epoch.

    Texts are shuffled within a buffer: each that is read takes the place of a random one, which is given out. The
    order is a function of the seed and the epoch, so that an interrupted run finds its place again by reading up to it.

    Args:
        corpus: the texts.
        tokenizer: as of :func:`passages`.
        length: tokens of a passage.
        join: as of :func:`passages`.
        buffer: texts among which the next one is drawn; 1 for the corpus's own order.
        seed: of the order.
    """

    def __init__(
        self, corpus: Corpus, tokenizer: Any, length: int, *, join: bool, buffer: int, seed: int
    ) -> None:
        self.corpus, self.tokenizer, self.length, self.join = corpus, tokenizer, length, join
        self.buffer, self.seed, self._epoch = buffer, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Says which pass over the texts begins, from 0."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        draw = random.Random(f"{self.seed} {self._epoch}")
        texts = _shuffled(self.corpus.training(), self.buffer, draw)
        return passages(texts, self.tokenizer, self.length, join=self.join)

    def __len__(self) -> int:
        """Number of passages; of a corpus of many texts as :attr:`lengths` suggest."""
        return len(self.lengths) * self._every

    @cached_property
    def lengths(self) -> Sequence[int]:
        """Tokens of the passages of at least :data:`SAMPLE` texts, at equal distances; of all where there are fewer.

        Special ones are included.

        Raises:
            DataError: no passage has a token.
        """
        texts = itertools.islice(self.corpus.training(), 0, None, self._every)
        rows = passages(texts, self.tokenizer, self.length, join=self.join)
        found = [len(row["original_ids"]) for row in rows]
        if not found:
            raise DataError(f"{self.corpus}: expected texts with tokens, got none")
        return found

    @property
    def _every(self) -> int:
        return max(1, self.corpus.read[1] // SAMPLE)


def _shuffled(texts: Iterator[str], buffer: int, draw: random.Random) -> Iterator[str]:
    held: list[str] = []
    for text in texts:
        if len(held) < buffer:
            held.append(text)
            continue
        place = draw.randrange(buffer)
        given, held[place] = held[place], text
        yield given
    draw.shuffle(held)
    yield from held
