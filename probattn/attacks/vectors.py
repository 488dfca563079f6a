"""Counter-fitted word vectors, whose neighbours are synonyms and not antonyms, made from GloVe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probattn.attacks.options import CounterFitting
from probattn.data import DataError, word_vectors
from probattn.data.files import data_file, read_lines, read_text
from probattn.data.words import GLOVE, glove_words
from probattn.files.durable import replace_atomically
from probattn.report import Group, Sheet
from probattn.tasks.errors import RunError
from probattn.tasks.progress import tracked

VECTORS = "counter_fitted_glove.txt"
"""Usual name of the file."""
SYNONYMS = ("ppdb_synonyms.txt",)
ANTONYMS = ("ppdb_antonyms.txt", "wordnet_antonyms.txt")
ORIGIN = "https://github.com/nmrksic/counter-fitting (linguistic_constraints)"
MOST_WORDS = 60_000
"""Words that are fitted unless asked otherwise, the most frequent ones; the original has about 65,000."""
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
CHUNK = 1 << 16
"""Pairs, and at most so many rows times words of distances, that are looked at together."""

Pairs = Iterable[tuple[str, str]]
Active = Callable[[Tensor, slice], Tensor]
"""Whether the terms of some pairs, at their distances ``[N]``, are above zero."""


class Fitted(NamedTuple):
    """Counter-fitted vectors, and mean cosine similarities of word pairs before and after.

    Attributes:
        vectors: unit vectors, ``[V, D]``.
        pairs: number of pairs by kind, "synonyms", "antonyms" and "neighbours".
        before: mean cosine similarity by kind in the original vectors; NaN without pairs.
        after: mean cosine similarity by kind in the fitted vectors.
    """

    vectors: Tensor
    pairs: Mapping[str, int]
    before: Mapping[str, float]
    after: Mapping[str, float]


def counter_fit(
    words: Sequence[str],
    vectors: Tensor,
    synonyms: Pairs,
    antonyms: Pairs,
    options: CounterFitting | None = None,
) -> Fitted:
    r"""Pulls synonyms together and pushes antonyms apart (Mrksic et al., NAACL 2016, section 2).

    With the cosine distance d, :math:`\tau(x) = \max(0, x)`, original vectors v and fitted ones v', passes reduce

    .. math:: \sum_{(u, w) \in A} \tau(\delta - d(v'_u, v'_w)) + \sum_{(u, w) \in S} \tau(d(v'_u, v'_w) - \gamma)
        + \sum_{(i, j) \in N} \tau(d(v'_i, v'_j) - d(v_i, v_j)),
        \qquad N = \{(i, j) : d(v_i, v_j) \le \rho\}

    whose last sum keeps neighbours near. In a pass, every vector moves by ``step`` times the mean of its gradients over
    the terms above 0, for each of the three sums, and is scaled to norm 1. With sums of gradients, words of many pairs
    would move too far, and the hundreds of neighbours of a frequent word would outweigh its few antonyms. A pair in
    both lists counts as antonyms, and antonyms do not count as neighbours.

    Args:
        words: V distinct words.
        vectors: their vectors, ``[V, D]``, none of them 0.
        synonyms: pairs S; pairs with a word without vector are ignored.
        antonyms: pairs A, also only pairs of words with vectors.
        options: the numbers above; None for the defaults, those of the paper.

    Returns:
        The fitted vectors, with statistics of the pairs.

    Raises:
        ValueError: the numbers of words and vectors differ, or a vector is 0 or not finite.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.4, 0.9]])
        >>> fitted = counter_fit(["good", "fine", "bad"], vectors, [("good", "fine")], [("fine", "bad")])
        >>> fitted.pairs
        {'synonyms': 1, 'antonyms': 1, 'neighbours': 0}
        >>> bool(fitted.after["synonyms"] > fitted.before["synonyms"]), fitted.after["antonyms"] < 0.5
        (True, True)
    """
    options = options or CounterFitting()
    vectors = vectors.cpu()
    norms = vectors.float().norm(dim=-1, keepdim=True)
    if len(words) != len(vectors):
        raise ValueError(f"counter_fit: expected {len(words)} vectors, one a word, got {len(vectors)}")
    if not bool((torch.isfinite(norms) & (norms > 0)).all()):
        raise ValueError("counter_fit: expected finite vectors other than 0")
    start = vectors.float() / norms
    indices = {word: index for index, word in enumerate(words)}
    apart = _numbered(antonyms, indices)
    together = _without(_numbered(synonyms, indices), apart, len(words))
    near = _without(_neighbours(start, options.neighbours), apart, len(words))
    distances = 1 - _cosines(start, near)
    current = start
    for _ in tracked(range(options.epochs), "counter-fitting"):
        move = _move(current, apart, -1.0, lambda d, _: d < options.antonyms)
        move += _move(current, together, 1.0, lambda d, _: d > options.synonyms)
        move += _move(current, near, 1.0, lambda d, chunk: d > distances[chunk])
        current = torch.nn.functional.normalize(current + options.step * move, dim=-1)
    kinds = {"synonyms": together, "antonyms": apart, "neighbours": near}
    return Fitted(
        current,
        {kind: len(pairs) for kind, pairs in kinds.items()},
        {kind: _cosines(start, pairs).mean().item() for kind, pairs in kinds.items()},
        {kind: _cosines(current, pairs).mean().item() for kind, pairs in kinds.items()},
    )


def _move(vectors: Tensor, pairs: Tensor, sign: float, active: Active) -> Tensor:
    """Mean direction of each vector over its active pairs, ``[V, D]``: on the sphere, together (1) or apart (-1)."""
    total, count = torch.zeros_like(vectors), vectors.new_zeros(len(vectors))
    for start in range(0, len(pairs), CHUNK):
        chunk = slice(start, start + CHUNK)
        first, second = pairs[chunk].unbind(dim=-1)
        u, w = vectors[first], vectors[second]
        cosine = (u * w).sum(dim=-1, keepdim=True)
        weight = active(1 - cosine[:, 0], chunk).float()[:, None]
        for index, vector, other in ((first, u, w), (second, w, u)):
            total.index_add_(0, index, sign * weight * (other - cosine * vector))
            count.index_add_(0, index, weight[:, 0])
    return total / count.clamp_min(1)[:, None]


def _numbered(pairs: Pairs, indices: Mapping[str, int]) -> Tensor:
    """Different pairs of known words by their places, the smaller first: int64 ``[N, 2]``."""
    unique = {
        (min(indices[a], indices[b]), max(indices[a], indices[b]))
        for a, b in pairs
        if a in indices and b in indices and a != b
    }
    return torch.tensor(sorted(unique), dtype=torch.long).reshape(-1, 2)


def _without(pairs: Tensor, others: Tensor, size: int) -> Tensor:
    """The pairs that are not among others; both have their smaller place first."""
    keys, taken = (item[:, 0] * size + item[:, 1] for item in (pairs, others))
    return pairs[~torch.isin(keys, taken)]


def _neighbours(vectors: Tensor, radius: float) -> Tensor:
    """Pairs of vectors of length 1 within a cosine distance, the smaller place first."""
    chunks = [torch.zeros(0, 2, dtype=torch.long)]
    rows = max(1, CHUNK * 64 // len(vectors))
    for start in tracked(range(0, len(vectors), rows), "neighbours of words"):
        near = (vectors[start : start + rows] @ vectors[start:].T) >= 1 - radius
        pairs = near.triu(diagonal=1).nonzero()
        chunks.append(pairs + start)
    return torch.cat(chunks)


def _cosines(vectors: Tensor, pairs: Tensor) -> Tensor:
    cosines = [(vectors[chunk[:, 0]] * vectors[chunk[:, 1]]).sum(dim=-1) for chunk in pairs.split(CHUNK)]
    return torch.cat(cosines)


def vectors_file() -> Path:
    """Default file of the vectors, in the user's cache ``$XDG_CACHE_HOME/probattn``.

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

    The lists of synonyms and antonyms are those of Mrksic et al. (2016), from PPDB and WordNet, in the subfolder
    "attack" of the folder of public data (``PROBATTN_DATA``).

    Args:
        file: file to write; None for :func:`vectors_file`.
        source: "glove-6b-50d", from an installed package (:func:`probattn.data.word_vectors`), or a text file of
            vectors with the most frequent words first.
        most: maximum number of words, the first ones of the source that consist of letters.
        options: options of :func:`counter_fit`.

    Returns:
        The file, and the fitted vectors with statistics of the pairs.

    Raises:
        DataError: the vectors or the lists are missing or invalid.
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
    """Words and their counter-fitted vectors, of norm 1, ``[V, D]``.

    Args:
        file: a file of :func:`make_vectors`, or any text file of vectors; None for :func:`vectors_file`.

    Raises:
        RunError: there is no such file; the message names the command that makes it.
        DataError: the file does not hold vectors.
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
    lines = glove_words() if str(source) == GLOVE else read_lines(Path(source).expanduser())
    for word in (line.partition(" ")[0] for line in lines):
        if _WORD.fullmatch(word):
            words[word] = None
        if len(words) == limit:
            break
    if not words:
        raise DataError(f"{source}: expected vectors of words, a word and its numbers a line, found no word")
    return list(words)
