"""How well a method's scores of words agree with what words do: measures of one network."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from effects_methods import METHODS, Question, Subject, Text, scores_of
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from probattn.inference.effects import SCREENED

SHARE = 0.2
"""Share of the words that comprehensiveness and sufficiency take (DeYoung et al. 2020)."""
DROPPED = 0.1
"""Share of the words that another wording leaves out."""
SURE = 0.9
"""Probability of the answer to a text into which a clause is planted."""
CLAUSE = range(3, 9)
"""Words of a clause."""
TRIES = 8
OTHER = 1000
"""Added to the seed of methods that draw, where their scores are compared with earlier ones."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Numbers of texts that are measured, with a planted clause, in another wording, and of the random network.

    Attributes:
        costly: texts on which the methods of a hundred passes are measured.
        words: of a text that are left out in turn, at most; others are drawn.
        pool: texts among which those for planted clauses are sought.
        wordwise: whether methods that take a pass a word run on other wordings and planted clauses, and on entropies.
        margin: whether the margin over the next class is explained, and not the log-odds.
    """

    texts: int
    costly: int
    planted: int
    varied: int
    control: int
    words: int
    pool: int
    wordwise: bool = True
    margin: bool = False


SHORT = Sizes(texts=40, costly=20, planted=8, varied=4, control=3, words=100, pool=300)
LONG = Sizes(texts=6, costly=3, planted=3, varied=2, control=2, words=60, pool=40, wordwise=False)
LONG_TEXTS = 128
"""Tokens above which texts are long."""
WORDWISE = ("knockout", "occlusion", "shapley_sampling")
COSTLY = ("integrated_gradients", "layer_integrated_gradients", "shapley_sampling", "shap_partition", "lime")


class Labelled(NamedTuple):
    """A text and its class."""

    text: Text
    label: int


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's; 0 where one of both orders nothing."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(spearmanr(first, second).statistic)


def entropies(logits: torch.Tensor) -> np.ndarray:
    """In nats, of ``[N, C]``."""
    return torch.distributions.Categorical(logits=logits.double()).entropy().numpy()


@dataclass(frozen=True)
class Reference:
    """What words of a text do: changes of log-odds and entropy when one is left out, of the log-odds when it is masked.

    Attributes:
        indices: of the words.
        logits: of the text, ``[1, C]``.
    """

    question: Question
    indices: np.ndarray
    logits: torch.Tensor
    deleted: np.ndarray
    masked: np.ndarray
    doubt: np.ndarray

    @classmethod
    def of(cls, subject: Subject, text: Text, most: int, seed: int, margin: bool = False) -> Reference:
        """By a pass for each word and kind."""
        logits = subject.logits([text])
        answer, other = logits[0].topk(2).indices.tolist()
        question = Question(subject, text, answer, seed, other if margin else None)
        number, mask = len(text.words), subject.mask
        indices = np.arange(number)
        if number > most:
            indices = np.sort(np.random.default_rng(seed).choice(number, most, replace=False))
        without = subject.logits([text.without([index]) for index in indices])
        replaced = [
            text._replace(words=(*text.words[:index], mask, *text.words[index + 1 :])) for index in indices
        ]
        base = float(question.odds(logits))
        return cls(
            question,
            indices,
            logits,
            base - question.odds(without).numpy(),
            base - question.of_rows(replaced),
            float(entropies(logits)[0]) - entropies(without),
        )

    @property
    def whole(self) -> bool:
        """Whether all words were left out in turn."""
        return len(self.indices) == len(self.question.text.words)

    def probabilities(self, rows: Sequence[Text]) -> np.ndarray:
        """Of the answer, of other texts."""
        return self.question.subject.logits(rows).softmax(dim=-1)[:, self.question.answer].numpy()


def timed_scores(question: Question, names: Sequence[str]) -> tuple[dict[str, np.ndarray], Figures]:
    """Scores by method, and passes and seconds by method."""
    scores, costs, passes = {}, {}, question.subject.passes
    for name in names:
        before, start = passes.number, time.perf_counter()
        scores[name] = scores_of(name, question)
        costs[name] = {"passes": passes.number - before, "seconds": time.perf_counter() - start}
    return scores, costs


def named(scores: Mapping[str, np.ndarray], name: str, sign: int) -> int:
    """The word that a method names first, for the target (1) or against it (-1); of screened ones by knock-outs."""
    values = sign * scores[name]
    if name.endswith("screened"):
        slopes = scores[name.replace("screened", "slope")]
        order = np.argsort(-slopes)
        exact = np.zeros(len(values), dtype=bool)
        exact[[*order[:SCREENED], *order[-SCREENED:]]] = True
        values = np.where(exact, values, -np.inf)
    return int(values.argmax())


def of_text(reference: Reference, names: Sequence[str]) -> tuple[Figures, dict[str, np.ndarray]]:
    """Measures by method on one text, and the methods' scores."""
    question, text = reference.question, reference.question.text
    scores, rows = timed_scores(question, names)
    number = max(1, round(SHARE * len(text.words)))
    leading = {name: np.argsort(-scores[name])[:number].tolist() for name in names if name in METHODS}
    without = reference.probabilities([text.without(indices) for indices in leading.values()])
    only = reference.probabilities([text.only(sorted(indices)) for indices in leading.values()])
    sure = float(reference.logits.softmax(dim=-1)[0, question.answer])
    for name, row in rows.items():
        of_answer = name in METHODS
        change = reference.deleted if of_answer else reference.doubt
        row["deleted"] = rank_correlation(scores[name][reference.indices], change)
        if of_answer:
            row["masked"] = rank_correlation(scores[name][reference.indices], reference.masked)
        if reference.whole:
            row["removed"] = float(reference.doubt[named(scores, name, -1 if of_answer else 1)])
    for index, name in enumerate(leading):
        rows[name]["comprehensiveness"] = sure - float(without[index])
        rows[name]["sufficiency"] = sure - float(only[index])
    start = time.perf_counter()
    question.subject.logits([text])
    figures = {
        "words": len(text.words),
        "forward": time.perf_counter() - start,
        "removable": float(reference.doubt.max()) if reference.whole else None,
        "agreement": agreement(scores),
        "methods": rows,
    }
    return figures, scores


def agreement(scores: Mapping[str, np.ndarray]) -> list[bool] | None:
    """Of each side that has a word, whether screening names the word that leads the knock-outs of all words."""
    if not {"slope", "screened", "knockout"} <= scores.keys():
        return None
    sides = [sign for sign in (1, -1) if (sign * scores["knockout"]).max() > 0]
    return [named(scores, "screened", sign) == named(scores, "knockout", sign) for sign in sides]


def varied(
    reference: Reference, scores: Mapping[str, np.ndarray], names: Sequence[str], seed: int
) -> Figures | None:
    """Rank correlation of the scores of the words that stay, when others are left out and the answer is the same."""
    question, text = reference.question, reference.question.text
    generator, number = np.random.default_rng(seed), len(text.words)
    for _ in range(TRIES):
        gone = generator.choice(number, max(1, round(DROPPED * number)), replace=False).tolist()
        stay = [index for index in range(number) if index not in gone]
        other = text.only(stay)
        if len(stay) > 2 and int(question.subject.logits([other]).argmax()) == question.answer:
            again, _ = timed_scores(question._replace(text=other, seed=question.seed + OTHER), names)
            return {name: rank_correlation(scores[name][stay], again[name]) for name in names}
    return None


def clause(words: Sequence[str]) -> list[str]:
    """The longest part of a text between punctuation marks that has the words of a clause; else its first words."""
    parts: list[list[str]] = [[]]
    for word in words:
        parts[-1].append(word)
        if re.search(r"[.,;:!?]$|^-+$", word):
            parts.append([])
    fitting = [part for part in parts if len(part) in CLAUSE]
    return max(fitting, key=len) if fitting else list(words[: CLAUSE[-1]])


def planted_texts(
    subject: Subject, pool: Sequence[Labelled], number: int, generator: np.random.Generator
) -> Iterator[tuple[Question, np.ndarray, float]]:
    """Texts with a clause of another class: where it is, and by how much it lowers the answer's probability.

    The clause is that of :data:`TRIES` texts drawn at random, each at a place drawn at random, that lowers it most.
    """
    probabilities = subject.logits([item.text for item in pool]).softmax(dim=-1)
    sure = [
        item
        for item, row in zip(pool, probabilities, strict=True)
        if row[item.label] > SURE and int(row.argmax()) == item.label and len(item.text.texts()[-1]) > 2
    ]
    left = number
    for item in sure:
        others = [other for other in sure if other.label != item.label]
        if not left or not others:
            return
        tries = [
            with_clause(subject, item.text, others[index].text, generator)
            for index in generator.permutation(len(others))[:TRIES]
        ]
        rows = [text for text, _, _ in tries] + [host for _, _, host in tries]
        result = subject.logits(rows).softmax(dim=-1)[:, item.label].tolist()
        drops = np.subtract(result[len(tries) :], result[: len(tries)])
        most = int(drops.argmax())
        if drops[most] > 0:
            text, where, _ = tries[most]
            seed = int(generator.integers(2**31))
            yield Question(subject, text, item.label, seed), where, float(drops[most])
            left -= 1


def with_clause(
    subject: Subject, host: Text, donor: Text, generator: np.random.Generator
) -> tuple[Text, np.ndarray, Text]:
    """A text with a clause of another, in its second text if it has one; which words are new; the text that it was."""
    new = clause(donor.texts()[-1])
    while True:
        begin = host.first or 0
        index = int(generator.integers(begin, len(host.words) + 1))
        text = host._replace(words=(*host.words[:index], *new, *host.words[index:]))
        if subject.shortened(text) == text or len(host.words) - begin < 2:
            break
        host = host.only(range(len(host.words) - len(new)))  # of a text that fills the network's length
    where = np.zeros(len(text.words), dtype=bool)
    where[index : index + len(new)] = True
    return text, where, host


def ahead(scores: np.ndarray, where: np.ndarray) -> float:
    """Share of the other parts of a text, as long as the clause, whose sums of scores are above that of the clause."""
    number, first = int(where.sum()), int(where.argmax())
    sums = np.convolve(scores, np.ones(number), "valid")
    others = np.delete(sums, first)
    return float((others > sums[first]).mean() + (others == sums[first]).mean() / 2)


def left_out(question: Question) -> np.ndarray:
    """Changes of the log-odds when a word is left out: how well the words of a clause could be told by what they do."""
    words = range(len(question.text.words))
    return question.of_rows([question.text]) - question.of_rows(
        [question.text.without([word]) for word in words]
    )


def measured(
    subject: Subject,
    control: Subject | None,
    texts: Sequence[Labelled],
    names: Sequence[str],
    sizes: Sizes,
    seed: int,
) -> Figures:
    """All measures of a network; ``control`` is one of the same kind with random weights."""
    again = [name for name in names if name in METHODS and (sizes.wordwise or name not in WORDWISE)]
    if not sizes.wordwise:  # leaving words out in turn removes uncertainty on short texts alone
        names = [name for name in names if name != "doubt_knockout"]
    cheap = [name for name in names if name not in COSTLY]
    rows, others, random = [], [], []
    for number, item in enumerate(texts[: sizes.texts]):
        reference = Reference.of(subject, item.text, sizes.words, number, sizes.margin)
        figures, scores = of_text(reference, names if number < sizes.costly else cheap)
        rows.append({**figures, "right": reference.question.answer == item.label})
        if number < sizes.varied:
            others.append(varied(reference, scores, again, number))
        if control is not None and number < sizes.control:
            other = reference.question._replace(subject=control, seed=number + OTHER)
            of_random, _ = timed_scores(other, again)
            random.append({name: rank_correlation(scores[name], of_random[name]) for name in again})
    generator = np.random.default_rng(seed)
    pool = texts[sizes.texts :][: sizes.pool]
    planted = [
        {
            "drop": drop,
            "words": {name: float(roc_auc_score(where, -score)) for name, score in scores.items()},
            "clause": {name: ahead(score, where) for name, score in scores.items()},
        }
        for question, where, drop in planted_texts(subject, pool, sizes.planted, generator)
        for scores in [timed_scores(question, again)[0] | {"left_out": left_out(question)}]
    ]
    return {
        "texts": rows,
        "planted": planted,
        "varied": [row for row in others if row is not None],
        "control": random,
    }
