"""BLEU of translations, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.checks import optional

ORDER = 4
"""Longest n-gram."""


@dataclass(frozen=True)
class BleuScore:
    """BLEU of a set of translations.

    Attributes:
        score: BLEU, 0 to 100.
        precisions: of n-grams of length 1 to 4, 0 to 100.
        brevity_penalty: factor in [0, 1] for translations that are shorter than their references.
        hypothesis_length: tokens of all translations.
        reference_length: tokens of all references.
        signature: sacrebleu's description of how it was computed.
    """

    score: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> BleuScore:
    r"""BLEU of a set of translations with one reference each (Papineni et al. 2002), as sacrebleu has it (Post 2018).

    .. math:: 100 \cdot \min(1, e^{1 - r / h}) \prod_{n=1}^4 p_n^{1/4}

    with h and r the numbers of tokens of translations and references, and :math:`p_n` the share of the translations'
    n-grams that their references have. Case counts; the tokenisation is 13a, that of mteval-v13a; a precision of 0 is
    smoothed exponentially.

    Args:
        hypotheses: the translations, detokenised.
        references: what they should be, as many.

    Returns:
        The score with its parts.

    Raises:
        ImportError: sacrebleu is not installed.
        ValueError: no translation, or unequal numbers.

    Example:
        >>> score = bleu(["A black dog runs on the beach."], ["A black dog runs along the beach."])
        >>> round(score.score, 2), score.signature.split("|version")[0]
        (50.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    return bleu_from_counts(bleu_counts(hypotheses, references))


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> Tensor:
    """Counts of each translation for BLEU; resampled rows give bootstrap intervals.

    Args:
        hypotheses: the translations.
        references: what they should be, as many.

    Returns:
        int64 ``[N, 10]``: matched n-grams and n-grams in all, of length 1 to 4 each, tokens of the translation, tokens
        of the reference.

    Raises:
        ImportError: sacrebleu is not installed.
        ValueError: no translation, or unequal numbers.
    """
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"bleu: expected as many translations as references, at least one, got {len(hypotheses)} and "
            f"{len(references)}"
        )
    # The order has no effect on the counts.
    metric = optional("BLEU", "sacrebleu.metrics", "translation").BLEU(effective_order=True)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sentence = metric.sentence_score(hypothesis, [reference])
        rows.append([*sentence.counts, *sentence.totals, sentence.sys_len, sentence.ref_len])
    return torch.tensor(rows)


def bleu_from_counts(counts: Tensor, order: int = ORDER) -> BleuScore:
    """BLEU of the translations that :func:`bleu_counts` has counted.

    Args:
        counts: int64 ``[N, 10]``; rows may be chosen, or repeated.
        order: longest n-gram that counts, 1 to 4; BLEU-1 to BLEU-4.

    Returns:
        The score with its parts.

    Raises:
        ImportError: sacrebleu is not installed.
        ValueError: no rows, or an order that was not counted.
    """
    if not 1 <= order <= ORDER:
        raise ValueError(f"bleu_from_counts: expected an order from 1 to {ORDER}, got {order}")
    if not len(counts):
        raise ValueError("bleu_from_counts: expected at least one translation, got none")
    metrics = optional("BLEU", "sacrebleu.metrics", "translation")
    sums = counts.sum(dim=0).tolist()
    corpus = metrics.BLEU.compute_bleu(
        correct=sums[:order],
        total=sums[ORDER : ORDER + order],
        sys_len=sums[-2],
        ref_len=sums[-1],
        smooth_method="exp",
        max_ngram_order=order,
    )
    plain = metrics.BLEU()
    plain.num_refs = 1
    return BleuScore(
        score=float(corpus.score),
        precisions=tuple(map(float, corpus.precisions)),
        brevity_penalty=float(corpus.bp),
        hypothesis_length=sums[-2],
        reference_length=sums[-1],
        signature=str(plain.get_signature()),
    )
