"""Whether the spread of effects over draws says which to distrust, and which words make a network unsure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import study
import torch
from effects_measures import Figures, Labelled, Reference, Sizes, rank_correlation
from effects_methods import Subject
from scipy.stats import rankdata

from probattn.inference import attention_effects, explain, posterior_moments, share_by
from probattn.inference.effect_results import words_of
from probattn.inference.explanation import FLOOR, LEADING

DRAWS = 20
FUNCTION_WORDS = frozenset(study.declared("effects")["function_words"].split())
"""A closed list."""


def is_function_word(word: str) -> bool:
    """Whether a word is of the closed list, or has no letter or digit."""
    return word.lower() in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)


def distrust(subject: Subject, texts: Sequence[Labelled], sizes: Sizes) -> list[Figures]:
    """By text and word: slope over draws, its spread, share of draws of its sign, change when left out, knock-out."""
    rows = []
    for number, item in enumerate(texts[: sizes.texts]):
        reference = Reference.of(subject, item.text, sizes.words, number)
        question, indices = reference.question, reference.indices
        target = torch.tensor([question.answer])
        options: dict[str, Any] = {"words": [subject.groups(item.text)], "target": target}
        inputs = question.inputs()
        drawn = attention_effects(
            subject.program, inputs, method="slope", num_samples=DRAWS, seed=number, **options
        )
        exact = attention_effects(subject.program, inputs, method="knockout", **options)
        values = {
            "slope": drawn.slope,
            "spread": drawn.spread,
            "same": drawn.same_sign,
            "expected": exact.slope,
            "knockout": exact.knockout,
        }
        read = indices < drawn.slope.shape[1]
        row = {name: value[0].numpy()[indices[read]] for name, value in values.items()}
        row["deleted"] = reference.deleted[read]
        whole = ~np.isnan(row["slope"])
        rows.append({name: value[whole].astype(float).round(5).tolist() for name, value in row.items()})
    return rows


SCORES = {
    "spread": lambda row: row["spread"],
    "spread_by_size": lambda row: row["spread"] / np.maximum(np.abs(row["slope"]), 1e-9),
    "other_sign": lambda row: 1 - row["same"],
    "size": lambda row: np.abs(row["slope"]),
    "small_size": lambda row: -np.abs(row["slope"]),
    "small_part": lambda row: -np.abs(row["slope"]) / max(np.abs(row["slope"]).max(), 1e-9),
}
"""What may say that an effect is not to be trusted; the last three need no draws."""
SPREADS = ("spread", "spread_by_size", "other_sign")
NAIVE = {"error": "size", "auroc": "small_part"}
"""What needs no draws, of errors and of wrong signs: the size, and the size among the text's words."""


def distrust_measures(row: Mapping[str, Sequence[float]]) -> Figures:
    """Of a text: by truth, which words have the wrong sign; by score, values and rank correlation with the error."""
    values = {name: np.asarray(item) for name, item in row.items()}
    scores = {name: score(values) for name, score in SCORES.items()}
    figures: Figures = {"scores": scores}
    for truth in ("deleted", "knockout"):
        error = np.abs(values["slope"] - values[truth])
        figures[truth] = {
            "wrong": np.sign(values["slope"]) != np.sign(values[truth]),
            "error": {name: rank_correlation(score, error) for name, score in scores.items()},
        }
    return figures


def distrust_summary(texts: Sequence[Figures]) -> dict[str, float]:
    """By truth and score: mean rank correlation with the error over texts, and AUROC of wrong signs over words."""
    measures = {}
    pooled = {name: np.concatenate([text["scores"][name] for text in texts]) for name in SCORES}
    for truth in ("deleted", "knockout"):
        wrong = np.concatenate([text[truth]["wrong"] for text in texts])
        measures[f"{truth}/wrong_signs"] = float(wrong.mean())
        for name in SCORES:
            errors = [text[truth]["error"][name] for text in texts]
            measures[f"{truth}/{name}/error"] = float(np.mean(errors))
            measures[f"{truth}/{name}/auroc"] = auroc(wrong, pooled[name])
    return measures


def auroc(positive: np.ndarray, scores: np.ndarray) -> float:
    """Of scores; one half where all or none are positive."""
    number, others = int(positive.sum()), int((~positive).sum())
    if not number or not others:
        return 0.5
    return float((rankdata(scores)[positive].sum() - number * (number + 1) / 2) / (number * others))


def reviewed(
    subject: Subject, texts: Sequence[str], pairs: Sequence[str] | None, *, shares: bool
) -> dict[str, Figures]:
    """Of the words that are named as what makes the network unsure, how many are function words, and below the floor.

    By effects on the entropy (``causes_of_doubt``), and by shares of the variance, which need latent attention.
    """
    explanations = explain(
        subject.net if subject.program is None else subject.program.net,
        subject.tokenizer,
        list(texts),
        None if pairs is None else list(pairs),
        method="knockout",
        max_length=subject.max_length,
    )
    lists = {"causes_of_doubt": [item.causes_of_doubt() for item in explanations]}
    if shares:
        lists["shares"] = [
            [item.words[index] for index in leading_shares(subject, item.texts)] for item in explanations
        ]
    return {name: counts(words) for name, words in lists.items()}


def leading_shares(subject: Subject, texts: Sequence[str]) -> list[int]:
    """The words with the largest shares of the variance, as indices among those of an explanation."""
    encoding = subject.tokenizer(
        *([text] for text in texts), truncation=True, max_length=subject.max_length, return_tensors="pt"
    )
    moments = posterior_moments(subject.program, dict(encoding), attribution=True, method="expansion")
    tokens = share_by(moments.noise_share, "key")[0]
    sums: dict[int, float] = {}
    for share, word in zip(tokens.tolist(), words_of(encoding, 0, texts), strict=True):
        if word is not None:
            sums[word] = sums.get(word, 0.0) + share
    order = sorted(range(len(sums)), key=lambda index: -sums[index])
    return order[:LEADING]


def counts(lists: Sequence[Sequence[Any]]) -> Figures:
    """Of lists of words: their number, that of function words, and of those that do not change the probability.

    A word that does not change it by the floor of explanations may still change the entropy.
    """
    words = [word for item in lists for word in item]
    function = [word for word in words if is_function_word(word.word)]
    return {
        "texts": len(lists),
        "texts_with_words": sum(bool(item) for item in lists),
        "words": len(words),
        "unmoved": sum(abs(word.change) < FLOOR for word in words),
        "neither": sum(abs(word.change) < FLOOR and abs(word.doubt) < FLOOR for word in words),
        "function_words": len(function),
        "function_words_unmoved": sum(abs(word.change) < FLOOR for word in function),
        "function_words_neither": sum(
            abs(word.change) < FLOOR and abs(word.doubt) < FLOOR for word in function
        ),
    }
