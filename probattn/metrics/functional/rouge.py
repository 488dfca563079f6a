"""ROUGE: how much of a reference a text has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

ROUGE = ("rouge1", "rouge2", "rougeL")
_OTHER = re.compile(r"[^a-z0-9]+")


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> Tensor:
    r"""ROUGE-1, ROUGE-2 and ROUGE-L of each text with its reference (Lin 2004), without stemming.

    With m the number of n-grams that both have (each as often as the one that has it fewer times), or the length of
    their longest common subsequence of words,

    .. math:: P = \frac{m}{|\text{text}|}, \qquad R = \frac{m}{|\text{reference}|}, \qquad F = \frac{2 P R}{P + R}

    Words are runs of letters a to z and digits, in lower case, as in Google's package ``rouge-score``.

    Args:
        hypotheses: texts.
        references: what they should be, as many.

    Returns:
        float64 ``[N, 3, 3]``: for each text, of ROUGE-1, ROUGE-2 and ROUGE-L precision, recall and F, in [0, 1]; 0
        where nothing is in common.

    Raises:
        ValueError: no texts, or unequal numbers.

    Example:
        >>> rouge(["a black dog runs"], ["the black dog sleeps"])[0, :, 2]
        tensor([0.5000, 0.3333, 0.5000], dtype=torch.float64)
    """
    check_texts("rouge", hypotheses, references)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        own, other = (_OTHER.sub(" ", text.lower()).split() for text in (hypothesis, reference))
        common = [_common(own, other, 1), _common(own, other, 2), _longest_common(own, other)]
        sizes = [(len(own) - less, len(other) - less) for less in (0, 1, 0)]
        rows.append([_scores(number, *size) for number, size in zip(common, sizes, strict=True)])
    return torch.tensor(rows, dtype=torch.float64)


def check_texts(name: str, hypotheses: Sequence[str], references: Sequence[object]) -> None:
    """Raises ``ValueError`` unless there are as many references as texts, one or more."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"{name}: expected as many texts as references, at least one, got {len(hypotheses)} and {len(references)}"
        )


def ngrams(words: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    """How often each run of so many words stands in a text."""
    return Counter(zip(*(words[start:] for start in range(length)), strict=False))


def _common(own: Sequence[str], other: Sequence[str], length: int) -> int:
    return (ngrams(own, length) & ngrams(other, length)).total()


def _longest_common(own: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, by rows of the usual table."""
    row = [0] * (len(other) + 1)
    for word in own:
        before = row
        row = [0]
        for place, match in enumerate(other, 1):
            row.append(before[place - 1] + 1 if word == match else max(before[place], row[-1]))
    return row[-1]


def _scores(common: int, own: int, other: int) -> list[float]:
    if common == 0:
        return [0.0, 0.0, 0.0]
    precision, recall = common / own, common / other
    return [precision, recall, 2 * precision * recall / (precision + recall)]
