"""METEOR: words that two texts have in common, with their stems and synonyms."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probattn.metrics.functional.rouge import check_texts
from probattn.metrics.functional.synonyms import WordNet

ALPHA, BETA, GAMMA = 0.9, 3.0, 0.5
PLACES = ("/usr/share/wordnet",)
"""Where systems keep WordNet's files."""


def find_wordnet(folder: Path | str | None = None) -> WordNet | None:
    """WordNet's files: of a folder, of the one that ``WNSEARCHDIR`` names, of nltk's corpora, or of the system.

    Args:
        folder: where they are; None to look for them.

    Returns:
        None where there are none.

    Raises:
        FileNotFoundError: the folder that was given lacks one of them.
    """
    if folder is not None:
        return WordNet(folder)
    places = [os.environ.get("WNSEARCHDIR"), *_corpora(), *PLACES]
    return next((WordNet(place) for place in places if place and (Path(place) / "data.noun").is_file()), None)


def meteor(hypotheses: Sequence[str], references: Sequence[str], wordnet: WordNet | None = None) -> Tensor:
    r"""METEOR of each text with its reference (Banerjee and Lavie 2005; Lavie and Agarwal 2007).

    Words in lower case are matched if they are the same, those that are left if they have the same stem (Porter), and
    the rest if they are synonyms, always the last ones first; with P and R the shares of words matched in the text and
    in the reference, m the number of matches and c that of the runs of matches that are together in both,

    .. math:: \frac{P R}{0.9 P + 0.1 R} \bigl(1 - 0.5 (c / m)^3\bigr)

    The weights and the order of matching are nltk's, and without synonyms its values; nltk looks for synonyms of stems,
    which finds few. METEOR 1.5 (Denkowski and Lavie 2014), which papers often give, has others, and paraphrases.

    Args:
        hypotheses: texts, words with spaces between them.
        references: what they should be, as many.
        wordnet: where synonyms are from, :func:`find_wordnet`; None for none.

    Returns:
        float64 ``[N]`` in [0, 1].

    Raises:
        ImportError: nltk is not installed.
        ValueError: no texts, or unequal numbers.

    Example:
        >>> meteor(["the cat sat"], ["the cat sat down"])
        tensor([0.7550], dtype=torch.float64)
    """
    check_texts("meteor", hypotheses, references)
    stem = cache(_porter().stem)
    rows = [
        _score(hypothesis.lower().split(), reference.lower().split(), stem, wordnet)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _score(
    own: Sequence[str], other: Sequence[str], stem: Callable[[str], str], wordnet: WordNet | None
) -> float:
    def synonyms(word: str) -> set[str]:
        return {word} if wordnet is None else {word, *wordnet.synonyms(word)}

    left, right = dict(enumerate(own)), dict(enumerate(other))
    matches: list[tuple[int, int]] = []
    for forms, form in (
        (lambda word: {word}, str),
        (lambda word: {stem(word)}, stem),
        (synonyms, str),
    ):
        matches += _matched(left, right, forms, form)
    if not matches:
        return 0.0
    precision, recall = len(matches) / len(own), len(matches) / len(other)
    mean = precision * recall / (ALPHA * precision + (1 - ALPHA) * recall)
    return mean * (1 - GAMMA * (_runs(sorted(matches)) / len(matches)) ** BETA)


def _matched(
    left: dict[int, str], right: dict[int, str], forms: Callable[[str], set[str]], form: Callable[[str], str]
) -> list[tuple[int, int]]:
    """Takes the words of the text out that have one of their forms in the reference, and these; the last ones first."""
    places: dict[str, list[int]] = {}
    for place, word in right.items():
        places.setdefault(form(word), []).append(place)
    found = []
    for place in sorted(left, reverse=True):
        free = [places[name][-1] for name in forms(left[place]) if places.get(name)]
        if free:
            match = max(free)
            places[form(right.pop(match))].pop()
            del left[place]
            found.append((place, match))
    return found


def _runs(matches: Sequence[tuple[int, int]]) -> int:
    """Number of runs of matches that follow each other in both texts."""
    return 1 + sum(second != (first[0] + 1, first[1] + 1) for first, second in pairwise(matches))


def meteor_words(wordnet: WordNet | None) -> str:
    """How :func:`meteor` is computed, in words."""
    return f"METEOR, {'stems and synonyms of WordNet' if wordnet else 'stems, without synonyms'}"


def _porter() -> Any:
    try:
        from nltk.stem.porter import PorterStemmer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"METEOR needs the package nltk ({error}); install it: pip install 'probattn[text_metrics]'"
        ) from error
    return PorterStemmer()


def _corpora() -> list[str]:
    """Places of nltk's corpus."""
    try:
        from nltk.data import path
    except ModuleNotFoundError:
        return []
    return [str(Path(place) / "corpora" / "wordnet") for place in path]
