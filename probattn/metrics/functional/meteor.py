"""METEOR: words that two texts have in common, with their stems and synonyms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.checks import optional
from probattn.metrics.functional.rouge import check_texts


class _NoSynonyms:
    """Replaces WordNet where it is not installed."""

    @staticmethod
    def synsets(_: str) -> list[Any]:
        return []


def find_wordnet() -> Any:
    """nltk's corpus ``wordnet`` (``python -m nltk.downloader wordnet``), from which :func:`meteor` takes synonyms.

    Returns:
        None where the corpus is not there.

    Raises:
        MissingPackageError: nltk (extra ``text_metrics``) is not installed.
    """
    optional("METEOR", "nltk", "text_metrics")
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    return wordnet


def meteor(hypotheses: Sequence[str], references: Sequence[str], wordnet: Any = None) -> Tensor:
    r"""METEOR of each text with its reference, as nltk has it (Banerjee and Lavie 2005).

    Words in lower case are matched if they are the same, those that are left if they have the same stem (Porter), and
    the rest if they are synonyms; with P and R the shares of words matched in the text and in the reference, m the
    number of matches and c that of the runs of matches that are together in both,

    .. math:: \frac{P R}{0.9 P + 0.1 R} \bigl(1 - 0.5 (c / m)^3\bigr)

    nltk looks synonyms up by stems: a word that is not its own stem, such as "automobile", has none. METEOR 1.5
    (Denkowski and Lavie 2014), which papers often give, has other weights, and paraphrases.

    Args:
        hypotheses: texts, words with spaces between them.
        references: what they should be, as many.
        wordnet: where synonyms are from, :func:`find_wordnet`; None for none.

    Returns:
        float64 ``[N]`` in [0, 1].

    Raises:
        MissingPackageError: nltk (extra ``text_metrics``) is not installed.
        ValueError: no texts, or unequal numbers.

    Example:
        >>> meteor(["the cat sat"], ["the cat sat down"])
        tensor([0.7550], dtype=torch.float64)
    """
    check_texts("meteor", hypotheses, references)
    optional("METEOR", "nltk", "text_metrics")
    from nltk.translate.meteor_score import single_meteor_score

    known = _NoSynonyms if wordnet is None else wordnet
    rows = [
        single_meteor_score(reference.split(), hypothesis.split(), wordnet=known)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def meteor_words(wordnet: Any) -> str:
    """How :func:`meteor` is computed, in words."""
    return f"METEOR of nltk, {'without synonyms' if wordnet is None else 'synonyms of WordNet'}"
