"""What :func:`probattn.inference.attention_effects` returns, and words of tokens."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from transformers import BatchEncoding

from probattn.inference.effect_targets import Reading
from probattn.inference.posterior import COLUMNS, REPR_ROWS, Link
from probattn.inference.predictive import joined

Words = BatchEncoding | Sequence[Sequence[int | None]] | Tensor


@dataclass(frozen=True)
class Effect:
    """Effect of the attention to one token or word on a prediction.

    Attributes:
        index: number of the token or word.
        effect: effect on the target: the knock-out if it was computed, else the slope.
        exact: whether ``effect`` is the knock-out.
        change: probability of the answer (or predicted number) with the token minus without; None if not masked.
        answer: the most probable class without the token, if it is another one; else None.
    """

    index: int
    effect: float
    exact: bool
    change: float | None
    answer: int | None


@dataclass(frozen=True, eq=False, repr=False)
class AttentionEffects:
    """Effects of G tokens or words on a number z of each of B predictions, for P draws (P = 1 at the expectation).

    Attributes:
        value: z, ``[P, B]``.
        slopes: slopes, ``[P, B, G]``; NaN for a word without tokens.
        knockouts: knock-outs, ``[P, B, G]``; NaN if not computed.
        change: probability of the answer with the token or word minus that without it, ``[B, G]``, in [-1, 1] (in
            regression the difference of the numbers); NaN if not computed.
        answer: number of the explained class, label or output, ``[B]``; -1 if ``target`` reads several predictions.
        most_probable: the most probable class with all tokens, ``[B]``.
        answer_probability: the probability of the answer (in regression its value), ``[B]``.
        answer_without: the most probable class without the token or word, ``[B, G]``; -1 if not computed.
        by_site: slopes by site, mean over draws, ``[B, H, 1, S]`` (H heads, S keys), for
            :func:`probattn.inference.share_by`.
        groups: number of the word of each token, ``[B, S]``, negative for none.
        link: function from predictions to probabilities, as in :class:`Posterior`.
    """

    value: Tensor
    slopes: Tensor
    knockouts: Tensor
    change: Tensor
    answer: Tensor
    most_probable: Tensor
    answer_probability: Tensor
    answer_without: Tensor
    by_site: Mapping[str, Tensor]
    groups: Tensor
    link: Link = "softmax"

    @classmethod
    def together(cls, batches: Sequence[Self]) -> Self:
        """Joins the rows of several batches; shorter ones are padded: effects with NaN, slopes by site with 0."""
        first = batches[0]
        return cls(
            torch.cat([batch.value for batch in batches], dim=1),
            joined([batch.slopes for batch in batches], 1, torch.nan),
            joined([batch.knockouts for batch in batches], 1, torch.nan),
            joined([batch.change for batch in batches], 0, torch.nan),
            torch.cat([batch.answer for batch in batches]),
            torch.cat([batch.most_probable for batch in batches]),
            torch.cat([batch.answer_probability for batch in batches]),
            joined([batch.answer_without for batch in batches], 0, -1),
            {name: joined([batch.by_site[name] for batch in batches], 0, 0.0) for name in first.by_site},
            joined([batch.groups for batch in batches], 0, -1),
            first.link,
        )

    @property
    def draws(self) -> Tensor:
        """Effects ``[P, B, G]`` of each draw: the knock-out if it was computed, else the slope."""
        return torch.where(self.knockouts.isnan(), self.slopes, self.knockouts)

    @property
    def effect(self) -> Tensor:
        """Mean over draws of the effects, ``[B, G]``: knock-outs if computed, else slopes."""
        return self.draws.mean(dim=0)

    @property
    def slope(self) -> Tensor:
        """Mean over draws of the slopes, ``[B, G]``."""
        return self.slopes.mean(dim=0)

    @property
    def knockout(self) -> Tensor:
        """Mean over draws of the knock-outs, ``[B, G]``; NaN if not computed."""
        return self.knockouts.mean(dim=0)

    @property
    def exact(self) -> Tensor:
        """Bool ``[B, G]``, True where the effect is a knock-out."""
        return ~self.knockouts[0].isnan()

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the effects over draws, ``[B, G]``; NaN if there is only one draw."""
        return self.draws.std(dim=0) if len(self.draws) > 1 else torch.full_like(self.effect, torch.nan)

    @property
    def same_sign(self) -> Tensor:
        """Share of draws whose effect has the sign of the mean effect, ``[B, G]``; NaN if there is only one draw."""
        same = (self.draws.sign() == self.effect.sign()).float().mean(dim=0)
        return torch.where(self.effect.isnan() | torch.tensor(len(self.draws) < 2), torch.nan, same)

    def leading(self, row: int, number: int = 3, *, floor: float = 0.01) -> tuple[list[Effect], list[Effect]]:
        """Lists of the largest positive and the largest negative effects of a row, of knock-outs if there are any.

        Args:
            row: number of the row in the batch.
            number: maximum number of effects in each list.
            floor: an effect is listed if its size exceeds this, in units of the target (log-odds, nats).
        """
        effect, exact, sides = self.effect[row], self.exact[row], []
        for sign in (1.0, -1.0):
            size = torch.where(effect.isnan(), -torch.inf, sign * effect)
            if bool(exact.any()):  # slopes are no sizes beside knock-outs
                size = torch.where(exact, size, -torch.inf)
            order = size.argsort(descending=True)[:number].tolist()
            sides.append([self._effect(row, index) for index in order if size[index] > max(floor, 0.0)])
        return sides[0], sides[1]

    def _effect(self, row: int, index: int) -> Effect:
        exact = bool(self.exact[row, index])
        change, other = float(self.change[row, index]), int(self.answer_without[row, index])
        return Effect(
            index,
            float(self.effect[row, index]),
            exact,
            None if math.isnan(change) else change,
            other if exact and other not in (-1, int(self.most_probable[row])) else None,
        )

    def __repr__(self) -> str:
        """The leading tokens or words of a few rows."""
        lines = [f"{type(self).__name__}({len(self.answer)} rows, {self.effect.shape[1]} tokens or words)"]
        for row in range(min(len(self.answer), REPR_ROWS)):
            for number in (3, 2, 1):
                words = (
                    f"{name} " + (", ".join(f"{item.index} {item.effect:+.2f}" for item in side) or "none")
                    for name, side in zip(("for", "against"), self.leading(row, number), strict=True)
                )
                line = f"  row {row}: {'; '.join(words)}"
                if len(line) <= COLUMNS:
                    break
            lines.append(line)
        return "\n".join(lines + ["  ..."] * (len(self.answer) > REPR_ROWS))


def effects_of(
    whole: Reading,
    slopes: Tensor,
    by_site: Mapping[str, Tensor],
    groups: Tensor,
    pairs: Tensor,
    without: Reading | None,
    link: Link,
) -> AttentionEffects:
    """From what is read of all rows, and of ``pairs`` ``[K, 2]`` of a row and a group that is left out."""
    rows, group = pairs.unbind(dim=1)
    knockouts, change = torch.full_like(slopes, torch.nan), torch.full_like(slopes[0], torch.nan)
    others = torch.full_like(change, -1, dtype=torch.int64)
    if without is not None:
        knockouts[:, rows, group] = (whole.value[:, rows] - without.value).to(slopes.dtype)
        change[rows, group] = (whole.probability[rows] - without.probability).to(slopes.dtype)
        others[rows, group] = without.best
    # Several calls a row, as of choices, have their keys behind one another.
    maps = {name: item.mean(dim=0).flatten(2).unsqueeze(2) for name, item in by_site.items()}
    return AttentionEffects(
        whole.value,
        slopes,
        knockouts,
        change,
        whole.answer,
        whole.best,
        whole.probability,
        others,
        maps,
        groups,
        link,
    )


def token_groups(owner: str, words: Words | None, tokens: Tensor) -> Tensor:
    """The group of each token, int64 ``[B, S]``, negative for none; of tokens of their own where there are no words."""
    rows, keys = tokens.shape
    if words is None:
        return torch.arange(keys, device=tokens.device).expand(rows, keys)
    if isinstance(words, BatchEncoding):
        words = [words_of(words, row) for row in range(len(words["input_ids"]))]
    if not isinstance(words, Tensor):
        if isinstance(words, str) or len({len(row) for row in words}) != 1:
            raise ValueError(
                f"{owner}: expected the words of {rows} rows, each of {keys} tokens, got {words!r:.80}"
            )
        words = torch.tensor([[-1 if word is None else word for word in row] for row in words])
    if words.shape != (rows, keys) or words.dtype != torch.int64:
        raise ValueError(
            f"{owner}: expected words int64 {[rows, keys]}, one of each token, got {words.dtype} {list(words.shape)}"
        )
    if not bool((words >= 0).any()) or int(words.max()) >= keys:
        raise ValueError(
            f"{owner}: expected words of some tokens, numbered 0..{keys - 1}, got numbers up to {int(words.max())}"
        )
    return words.to(tokens.device).clamp_min(-1)


JOINERS = ("'", "-", "\N{RIGHT SINGLE QUOTATION MARK}")
"""What stands inside a word, as in "can't" and "one-sided"."""
WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""How the names of characters begin in scripts that part no words by blanks; their tokens stand for words."""


def words_of(encoding: BatchEncoding, row: int, texts: Sequence[str] | None = None) -> list[int | None]:
    """The word of each token of a row, numbered from 0; those of a second text come after those of the first.

    They are the tokenizer's, and tokens that begin with its mark of a blank. With the texts, blanks and punctuation
    part words, but for an apostrophe or a hyphen between letters.
    """
    numbers: list[int | None] = []
    last: tuple[int | None, int | None] = None, None
    number, end = -1, 0
    ids, which, tokens = encoding.word_ids(row), encoding.sequence_ids(row), encoding.tokens(row)
    for index, (word, text) in enumerate(zip(ids, which, strict=True)):
        characters = None if word is None else encoding.token_to_chars(row, index)
        if characters is None:
            numbers.append(None)
            continue
        begins = (word, text) != last or tokens[index].startswith(("\u2581", "\u0120"))
        if texts is not None and text == last[1]:
            begins = _begins(texts[text or 0], end, characters.start, begins)
        number += begins
        numbers.append(number)
        last, end = (word, text), characters.end
    return numbers


def _begins(text: str, end: int, start: int, otherwise: bool) -> bool:
    """Whether a word begins at ``start``, after a token up to ``end``; in doubt as the tokenizer has it."""
    if start < end:  # a token of bytes, several of which make a character
        return False
    before, after = text[max(end - 2, 0) : end], text[start : start + 2]
    blank = not before.strip() or before[-1].isspace() or after[:1].isspace()
    if blank or not after or any(character.isspace() for character in text[end:start]):
        return True
    if before[-1].isalnum() and after[0] in JOINERS:
        return not after[1:].isalnum()
    if before[-1] in JOINERS and len(before) == 2 and before[0].isalnum():
        return not after[0].isalnum()
    if unicodedata.name(after[0], "").startswith(WITHOUT_BLANKS):
        return True
    return otherwise or before[-1].isalnum() != after[0].isalnum()


def summed(tokens: Tensor, groups: Tensor) -> Tensor:
    """Sums ``[P, B, G]`` over the tokens of each group, of ``[P, B, S]``; NaN for a group without a token."""
    index = groups.clamp_min(0)
    size = int(index.max()) + 1
    counts = torch.zeros(len(groups), size, dtype=torch.float32, device=tokens.device).scatter_add_(
        1, index, (groups >= 0).float()
    )
    sums = tokens.new_zeros(len(tokens), len(groups), size)
    sums.scatter_add_(2, index.expand_as(tokens), torch.where(groups >= 0, tokens, 0.0))
    return torch.where(counts > 0, sums, torch.nan)
