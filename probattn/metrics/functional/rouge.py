"""ROUGE: how much of a reference a text has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from probattn.checks import optional

ROUGE = ("rouge1", "rouge2", "rougeL")


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> Tensor:
    r"""ROUGE-1, ROUGE-2 and ROUGE-L of each text with its reference (Lin 2004), without stemming.

    With m the number of n-grams that both have (each as often as the one that has it fewer times), or the length of
    their longest common subsequence of words,

    .. math:: P = \frac{m}{|\text{text}|}, \qquad R = \frac{m}{|\text{reference}|}, \qquad F = \frac{2 P R}{P + R}

    Google's package ``rouge-score`` computes them; words are runs of letters a to z and digits, in lower case.

    Args:
        hypotheses: texts.
        references: what they should be, as many.

    Returns:
        float64 ``[N, 3, 3]``: for each text, of ROUGE-1, ROUGE-2 and ROUGE-L precision, recall and F, in [0, 1]; 0
        where nothing is in common.

    Raises:
        ImportError: rouge-score is not installed.
        ValueError: no texts, or unequal numbers.

    Example:
        >>> rouge(["a black dog runs"], ["the black dog sleeps"])[0, :, 2]
        tensor([0.5000, 0.3333, 0.5000], dtype=torch.float64)
    """
    check_texts("rouge", hypotheses, references)
    scorer = optional("ROUGE", "rouge_score.rouge_scorer", "text_metrics").RougeScorer([*ROUGE])
    found = (scorer.score(reference, text) for text, reference in zip(hypotheses, references, strict=True))
    return torch.tensor([[scores[name] for name in ROUGE] for scores in found], dtype=torch.float64)


def check_texts(name: str, hypotheses: Sequence[str], references: Sequence[object]) -> None:
    """Raises ``ValueError`` unless there are as many references as texts, one or more."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"{name}: expected as many texts as references, at least one, got {len(hypotheses)} and {len(references)}"
        )


def ngrams(words: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    """How often each run of so many words stands in a text."""
    return Counter(zip(*(words[start:] for start in range(length)), strict=False))
