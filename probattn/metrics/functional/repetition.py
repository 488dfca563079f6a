"""What a text says twice, and which of given names it has."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from probattn.metrics.functional.rouge import check_texts, ngrams

_CLAUSE = re.compile(r"\s(?:[.,;:!?]|and|but|or)(?=\s)")


def repeated_ngrams(texts: Sequence[str], length: int = 4) -> Tensor:
    """Share of the n-grams of each text that stand in it before.

    Args:
        texts: words with spaces between them.
        length: words of an n-gram, >= 1.

    Returns:
        float64 ``[N]`` in [0, 1); 0 for texts that are shorter.

    Example:
        >>> repeated_ngrams(["a b a b a"], length=2)
        tensor([0.5000], dtype=torch.float64)
    """
    if length < 1:
        raise ValueError(f"repeated_ngrams: expected a length >= 1, got {length}")
    counts = [ngrams(text.split(), length) for text in texts]
    shares = [1 - len(count) / count.total() if count else 0.0 for count in counts]
    return torch.tensor(shares, dtype=torch.float64)


def repeated_clauses(texts: Sequence[str]) -> Tensor:
    """Share of the clauses of each text that stand in it before, word for word.

    Clauses are what stands between marks and the words "and", "but" and "or"; those of one or two words do not count.

    Args:
        texts: words and marks with spaces between them.

    Returns:
        float64 ``[N]`` in [0, 1); 0 for texts without clauses.

    Example:
        >>> repeated_clauses(["we use a net , and we use a net . it is good ."])
        tensor([0.3333], dtype=torch.float64)
    """
    shares = []
    for text in texts:
        clauses = [part.strip() for part in _CLAUSE.split(f" {text} ")]
        long = [clause for clause in clauses if len(clause.split()) > 2]
        shares.append(1 - len(set(long)) / len(long) if long else 0.0)
    return torch.tensor(shares, dtype=torch.float64)


def name_coverage(texts: Sequence[str], names: Sequence[Sequence[str]]) -> Tensor:
    """Share of the names given for each text that stand in it, word for word; a name that is given twice counts once.

    Args:
        texts: words with spaces between them.
        names: of each text, the same.

    Returns:
        float64 ``[N]`` in [0, 1]; 0 for a text without names.

    Raises:
        ValueError: no texts, or unequal numbers.

    Example:
        >>> name_coverage(["a fast parser of speech"], [["fast parser", "parse"]])
        tensor([0.5000], dtype=torch.float64)
    """
    check_texts("name_coverage", texts, names)
    shares = []
    for text, given in zip(texts, names, strict=True):
        padded, distinct = f" {' '.join(text.split())} ", {" ".join(name.split()) for name in given}
        shares.append(sum(f" {name} " in padded for name in distinct) / max(1, len(distinct)))
    return torch.tensor(shares, dtype=torch.float64)
