"""Accuracy of answers to visual questions, against several annotators."""

from __future__ import annotations

import re

NEEDED = 3
"""Annotators who must agree with an answer for it to be fully right."""
DIGITS = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
} | {"none": "0"}
ARTICLES = frozenset(("a", "an", "the"))
SIGNS = ';/[]"{}()=+\\_-><@`,?!'
_GROUPED = re.compile(r"\d,\d")
_POINT = re.compile(r"\.(?!\d)")


def annotator_accuracy(matches: int, annotators: int) -> float:
    r"""VQA accuracy of an answer (Antol et al., ICCV 2015): the mean over all annotators but one.

    .. math:: \frac 1A \sum_{a=1}^A \min\Bigl(\frac{\#\{b \ne a : \text{b gave the answer}\}}{3}, 1\Bigr)

    With fewer than four annotators fewer must agree: A - 1 of them, or the one that there is.

    Args:
        matches: annotators who gave the answer.
        annotators: A; 0 gives 0.

    Example:
        >>> [round(annotator_accuracy(matches, 10), 2) for matches in range(6)]
        [0.0, 0.3, 0.6, 0.9, 1.0, 1.0]
        >>> annotator_accuracy(1, 1)
        1.0
    """
    if annotators < 2:
        return float(matches > 0)
    needed = min(NEEDED, annotators - 1)
    others = (annotators - matches) * min(matches, needed) + matches * min(matches - 1, needed)
    return others / (annotators * needed)


def normal_answer(answer: str) -> str:
    """An answer as VQA's evaluation compares it (Antol et al. 2015): lower case, digits, no articles or punctuation.

    A sign is left out wherever it stands if it stands beside a space anywhere in the answer, or if the answer has a
    comma between digits; otherwise a space replaces it. A point is left out unless a digit follows. Two things differ
    from the official evaluation: it also puts apostrophes into contractions ("dont"), and of an answer such as "the"
    it leaves nothing, where here the answer stays.

    Example:
        >>> [normal_answer(answer) for answer in ("Two dogs.", "hot-dog", "t-shirt, blue - red", "1,000", "2.5")]
        ['2 dogs', 'hot dog', 'tshirt blue red', '1000', '2.5']
    """
    text = " ".join(answer.split())
    grouped = _GROUPED.search(text) is not None
    cleaned = text
    for sign in SIGNS:
        alone = grouped or f"{sign} " in text or f" {sign}" in text
        cleaned = cleaned.replace(sign, "" if alone else " ")
    words = (DIGITS.get(word, word) for word in _POINT.sub("", cleaned).lower().split())
    return " ".join(word for word in words if word not in ARTICLES) or text.lower()
