"""Measures of texts: BLEU, overlap with references, repetition, names, answers against several annotators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from probattn.checks import optional

ORDER = 4  # longest n-gram


@dataclass(frozen=True)
class BleuScore:
    """BLEU of a set of translations.

    Attributes:
        score: BLEU, 0 to 100.
        precisions: precisions of n-grams of length 1 to 4, each 0 to 100.
        brevity_penalty: factor in [0, 1] for translations that are shorter than their references.
        hypothesis_length: number of tokens of all translations.
        reference_length: number of tokens of all references.
        signature: sacrebleu's description of how it was computed.
    """

    score: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> BleuScore:
    r"""BLEU of translations with one reference each (Papineni et al. 2002), computed by sacrebleu (Post 2018).

    .. math:: 100 \cdot \min(1, e^{1 - r / h}) \prod_{n=1}^4 p_n^{1/4}

    with h and r the numbers of tokens of translations and references, and :math:`p_n` the share of the translations'
    n-grams that occur in their references. Case matters; the tokenisation is 13a, that of mteval-v13a; a precision of 0
    is smoothed exponentially. Pass translations and references as detokenised text.

    Raises:
        MissingPackageError: sacrebleu (extra ``translation``) is not installed.
        ValueError: no translation, or unequal numbers.

    Example:
        >>> score = bleu(["A black dog runs on the beach."], ["A black dog runs along the beach."])
        >>> round(score.score, 2), score.signature.split("|version")[0]
        (50.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    return bleu_from_counts(bleu_counts(hypotheses, references))


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> Tensor:
    """Counts of each translation from which :func:`bleu_from_counts` computes BLEU, for instance of bootstrap samples.

    Arguments and errors are those of :func:`bleu`.

    Returns:
        int64 ``[N, 10]``: for lengths 1 to 4 the numbers of matched n-grams, then of all n-grams; the numbers of tokens
        of the translation and of the reference.
    """
    check_texts("bleu", hypotheses, references, "translations")
    # The order has no effect on the counts.
    metric = optional("BLEU", "sacrebleu.metrics", "translation").BLEU(effective_order=True)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sentence = metric.sentence_score(hypothesis, [reference])
        rows.append([*sentence.counts, *sentence.totals, sentence.sys_len, sentence.ref_len])
    return torch.tensor(rows)


def bleu_from_counts(counts: Tensor, order: int = ORDER) -> BleuScore:
    """BLEU of translations from the counts of :func:`bleu_counts`.

    Args:
        counts: int64 ``[N, 10]``, also a selection of rows, with or without repetition.
        order: length of the longest n-gram, 1 to 4, for BLEU-1 to BLEU-4.

    Raises:
        MissingPackageError: sacrebleu (extra ``translation``) is not installed.
        ValueError: there are no rows, or the order is out of range.
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


ROUGE = ("rouge1", "rouge2", "rougeL")


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> Tensor:
    r"""ROUGE-1, ROUGE-2 and ROUGE-L of each text with its reference (Lin 2004), without stemming.

    With m the number of common n-grams (clipped to the smaller count), or for ROUGE-L the length of the longest common
    subsequence of words, and :math:`|\cdot|` the number of n-grams or words,

    .. math:: P = \frac{m}{|\text{text}|}, \qquad R = \frac{m}{|\text{reference}|}, \qquad F = \frac{2 P R}{P + R}

    Google's package ``rouge-score`` computes them; words are runs of letters a to z and digits, in lower case.

    Args:
        hypotheses: N >= 1 texts.
        references: N reference texts.

    Returns:
        float64 ``[N, 3, 3]``: for each text, precision, recall and F (last dimension) of ROUGE-1, ROUGE-2 and ROUGE-L,
        in [0, 1]; 0 if text and reference have nothing in common.

    Raises:
        MissingPackageError: rouge-score (extra ``text_metrics``) is not installed.
        ValueError: no texts, or unequal numbers.

    Example:
        >>> rouge(["a black dog runs"], ["the black dog sleeps"])[0, :, 2]
        tensor([0.5000, 0.3333, 0.5000], dtype=torch.float64)
    """
    check_texts("rouge", hypotheses, references)
    scorer = optional("ROUGE", "rouge_score.rouge_scorer", "text_metrics").RougeScorer([*ROUGE])
    rows = (scorer.score(reference, text) for text, reference in zip(hypotheses, references, strict=True))
    return torch.tensor([[scores[name] for name in ROUGE] for scores in rows], dtype=torch.float64)


def check_texts(
    name: str, hypotheses: Sequence[str], references: Sequence[object], what: str = "texts"
) -> None:
    """Raises ``ValueError`` unless there are as many references as texts, one or more."""
    sizes = len(hypotheses), len(references)
    if sizes[0] != sizes[1] or not hypotheses:
        raise ValueError(
            f"{name}: expected as many {what} as references, at least one, got {sizes[0]} and {sizes[1]}"
        )


def ngrams(words: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    """Count of each n-gram of ``length`` words in a text."""
    return Counter(zip(*(words[start:] for start in range(length)), strict=False))


def find_wordnet() -> Any:
    """nltk's corpus ``wordnet`` (``python -m nltk.downloader wordnet``), from which :func:`meteor` takes synonyms.

    Returns:
        The corpus; None if it is not on the machine.

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
    r"""METEOR of each text with its reference, computed by nltk (Banerjee and Lavie 2005).

    Lower-cased words are matched if they are equal, then if they have the same Porter stem, then if they are synonyms.
    With P and R the shares of matched words in the text and in the reference, m the number of matches and c the number
    of chunks (runs of matches that are contiguous in text and reference),

    .. math:: \frac{P R}{0.9 P + 0.1 R} \bigl(1 - 0.5 (c / m)^3\bigr)

    nltk looks up synonyms by stem; it finds none for a word that differs from its stem, such as "automobile". METEOR
    1.5 (Denkowski and Lavie 2014), which papers often report, has other weights and matches paraphrases.

    Args:
        hypotheses: N >= 1 texts, words separated by spaces.
        references: N reference texts, in the same form.
        wordnet: source of synonyms, from :func:`find_wordnet`; None to match no synonyms.

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

    synonyms = SimpleNamespace(synsets=lambda _: []) if wordnet is None else wordnet
    rows = [
        single_meteor_score(reference.split(), hypothesis.split(), wordnet=synonyms)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def meteor_words(wordnet: Any) -> str:
    """Description of how :func:`meteor` is computed."""
    return f"METEOR of nltk, {'without synonyms' if wordnet is None else 'synonyms of WordNet'}"


_CLAUSE = re.compile(r"\s(?:[.,;:!?]|and|but|or)(?=\s)")


def repeated_ngrams(texts: Sequence[str], length: int = 4) -> Tensor:
    """Share of the n-grams (``length`` >= 1 words, separated by spaces) of each text that occur earlier in this text.

    Returns:
        float64 ``[N]`` in [0, 1); 0 for texts of fewer than ``length`` words.

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
    """Share of the clauses of each text that occur earlier in this text, word for word.

    Punctuation marks and the words "and", "but" and "or" separate clauses; clauses of one or two words do not count.
    Words and marks must be separated by spaces.

    Returns:
        float64 ``[N]`` in [0, 1); 0 for texts without clauses of three words or more.

    Example:
        >>> repeated_clauses(["we use a net , and we use a net . it is good ."])
        tensor([0.3333], dtype=torch.float64)
    """
    shares = []
    for text in texts:
        clauses = [clause.strip() for clause in _CLAUSE.split(f" {text} ")]
        long = [clause for clause in clauses if len(clause.split()) > 2]
        shares.append(1 - len(set(long)) / len(long) if long else 0.0)
    return torch.tensor(shares, dtype=torch.float64)


def name_coverage(texts: Sequence[str], names: Sequence[Sequence[str]]) -> Tensor:
    """Share of the distinct ``names`` of each text that occur in this text, word for word.

    Words of texts and names must be separated by spaces.

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
    for text, listed in zip(texts, names, strict=True):
        padded, distinct = f" {' '.join(text.split())} ", {" ".join(name.split()) for name in listed}
        shares.append(sum(f" {name} " in padded for name in distinct) / max(1, len(distinct)))
    return torch.tensor(shares, dtype=torch.float64)


NEEDED = 3  # annotators who must agree with an answer for it to be fully right
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
    r"""VQA accuracy of an answer (Antol et al., ICCV 2015), averaged over the sets of all annotators but one.

    .. math:: \frac 1A \sum_{a=1}^A \min\Bigl(\frac{\#\{b \ne a : \text{b gave the answer}\}}{3}, 1\Bigr)

    ``matches`` of A ``annotators`` gave the answer. For two or three annotators A - 1 replaces the 3; with one, the
    accuracy is 1 if this annotator gave the answer; A = 0 gives 0.

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

    A punctuation sign is removed throughout the answer if it is next to a space anywhere in it, or if the answer has a
    comma between digits; otherwise a space replaces it. A point is removed unless a digit follows. The official
    evaluation differs in two ways: it also puts apostrophes into contractions ("dont"), and it makes an answer of
    articles only, such as "the", empty, which here remains as it is.

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
