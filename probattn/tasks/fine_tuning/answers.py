"""Answers in a context: how they are given, which there can be, and how they compare with the true ones."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from probattn.checks import shown
from probattn.data import DataError
from probattn.inference.posterior import Posterior

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Found = tuple[str, int]
"""An answer and its first character in the context."""


def given_answers(answers: Any, starts: Any, where: str) -> Iterator[Found]:
    """Answers of a row, as lists, objects or texts with ``starts``, without empty ones; ``DataError`` at ``where``."""
    texts = answers
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text"), answers.get("answer_start")
    elif isinstance(answers, list) and all(isinstance(item, Mapping) for item in answers):
        texts, starts = ([item.get(name) for item in answers] for name in ("text", "answer_start"))
    if not isinstance(texts, list):
        texts, starts = [texts], [starts]
    if not isinstance(starts, list) or len(texts) != len(starts):
        raise DataError(f"{where}: expected a start for each of {len(texts)} answers, got {shown(starts)}")
    for text, start in zip(texts, starts, strict=True):
        if text is None or text == "":
            continue
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: expected the text of an answer, got {shown(text)}")
        try:
            first = float(start)
        except (TypeError, ValueError):
            first = math.nan
        if not first.is_integer():
            raise DataError(
                f"{where}: expected a whole number as start of the answer {shown(text)}, its first character in the "
                f"context counted from 0, got {shown(start)}"
            )
        yield text, int(first)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The K spans of a context that can answer, each in the window where it has the most context; int64.

    ``tokens`` are characters ``[G, 2]``, ``ends`` tokens and ``positions``, in a ``window`` ``[K]``, ``[K, 2]``.
    """

    tokens: Tensor
    ends: Tensor
    window: Tensor
    positions: Tensor

    @classmethod
    def of(cls, windows: Sequence[Tensor], longest: int) -> Self:
        """Spans of at most ``longest`` tokens of windows, each int64 ``[n, 3]``: position in the row and characters."""
        tokens, numbers = torch.cat(list(windows))[:, 1:].unique(dim=0, return_inverse=True)
        size = (len(tokens), longest)
        margin, owner = torch.full(size, -1), torch.zeros(size, dtype=torch.long)
        positions = torch.zeros(*size, 2, dtype=torch.long)
        tokens_of_windows = numbers.split([len(window) for window in windows])
        for row, (window, tokens_inside) in enumerate(zip(windows, tokens_of_windows, strict=True)):
            if not len(window):
                continue
            low, high = int(tokens_inside.min()), int(tokens_inside.max())
            extent = torch.zeros(high - low + 1, 2, dtype=torch.long)
            for column, which in enumerate(("amin", "amax")):  # a character of several tokens
                extent[:, column].scatter_reduce_(
                    0, tokens_inside - low, window[:, 0], which, include_self=False
                )
            first = torch.arange(low, high + 1)[:, None]
            last = first + torch.arange(longest)
            here = torch.minimum(first - low, high - last)
            inside = slice(low, high + 1)
            better = here > margin[inside]
            margin[inside][better], owner[inside][better] = here[better], row
            both = [extent[first - low, 0].expand_as(last), extent[(last - low).clamp_max(high - low), 1]]
            positions[inside][better] = torch.stack(both, dim=-1)[better]
        covered = margin >= 0
        first, more = covered.nonzero(as_tuple=True)
        return cls(tokens, torch.stack([first, first + more], dim=1), owner[covered], positions[covered])

    def scores(self, logits: Tensor) -> Tensor:
        """Scores of no answer and of the spans ``[..., 1 + K]``, from logits ``[..., W, 2, T]`` of all windows."""
        nothing = logits[..., 0].sum(dim=-1).amin(dim=-1, keepdim=True)
        first, last = self.positions.unbind(dim=1)
        return torch.cat(
            [nothing, logits[..., self.window, 0, first] + logits[..., self.window, 1, last]], dim=-1
        )

    def characters(self, outcome: int) -> tuple[int | None, int | None]:
        """First character of an outcome and the one behind its last; None for no answer, outcome 0."""
        if outcome == 0:
            return None, None
        first, last = self.ends[outcome - 1].tolist()
        return int(self.tokens[first, 0]), int(self.tokens[last, 1])

    def text(self, context: str, outcome: int) -> str:
        """The text of an outcome; empty for no answer."""
        start, end = self.characters(outcome)
        return "" if start is None else context[start:end]

    def true(self, answers: Iterable[Found]) -> list[int]:
        """The outcomes that true answers are, without those that are no candidates."""
        answers = list(answers)
        if not answers:
            return [0]
        true_ends = {
            ends for text, start in answers if (ends := ends_of(self.tokens, text, start)) is not None
        }
        return [
            int(outcome) + 1
            for ends in sorted(true_ends)
            for outcome in (self.ends == torch.tensor(ends)).all(dim=1).nonzero()
        ]


def negative_log_likelihood(joint: Posterior, true: Sequence[int]) -> float:
    """Of some outcomes together, nats; NaN for none."""
    if not true:
        return math.nan
    logs = joint.logits[:, 0].double().log_softmax(dim=-1)[:, list(true)]
    return math.log(len(logs)) - logs.flatten().logsumexp(dim=0).item()


def normalised(text: str) -> list[str]:
    """Words of an answer as SQuAD's script compares them: without case, punctuation and articles.

    Example:
        >>> normalised("The  U.S. Army")
        ['us', 'army']
    """
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def exact_match(predicted: Sequence[str], true: Sequence[str]) -> float:
    """1 for equal words, else 0."""
    return float(predicted == true)


def word_f1(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words; 1 for two empty answers, 0 for one."""
    if not predicted or not true:
        return float(predicted == true)
    return 2 * (Counter(predicted) & Counter(true)).total() / (len(predicted) + len(true))


def best_match(
    measure: Callable[[Sequence[str], Sequence[str]], float], predicted: str, answers: Iterable[str]
) -> float:
    """A measure by the best of the true answers, of none by the empty one (Rajpurkar et al. 2018, their script)."""
    true = [words for answer in answers if (words := normalised(answer))] or [[]]
    return max(measure(normalised(predicted), words) for words in true)


def visible(context: str, offsets: Sequence[tuple[int, int]], sequences: Sequence[int | None]) -> Tensor:
    """Position and characters, without blanks around them, of a row's tokens of the context, int64 ``[n, 3]``."""
    tokens = []
    for position, ((start, end), sequence) in enumerate(zip(offsets, sequences, strict=True)):
        text = context[start:end] if sequence == 1 else ""
        if text.strip():
            tokens.append((position, end - len(text.lstrip()), start + len(text.rstrip())))
    return torch.tensor(tokens, dtype=torch.long).view(-1, 3)


def ends_of(tokens: Tensor, text: str, start: int) -> tuple[int, int] | None:
    """First and last of tokens, with their characters ``[n, 2]``, of an answer; None where it is not all there."""
    end = start + len(text.rstrip())
    start += len(text) - len(text.lstrip())
    first, behind = tokens.unbind(dim=1)
    inside = ((first < end) & (behind > start)).nonzero()[:, 0]
    if not len(inside) or first[inside[0]] > start or behind[inside[-1]] < end:
        return None
    return int(inside[0]), int(inside[-1])
