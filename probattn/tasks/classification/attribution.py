"""The words of a text whose attention makes its prediction unsure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probattn.inference.attribution import Pair, leading_pairs, reweighted_expectation, variance_removed
from probattn.inference.expansion import posterior_moments
from probattn.inference.moments import Moments
from probattn.metrics.functional.inputs import widened
from probattn.models.hosts.convert import conversion
from probattn.report import Answer, AttributionExample, Change, Example, Reason
from probattn.tasks.classification.looks import second_text
from probattn.tasks.networks import Network

LEADING_WORDS, LEADING_PAIRS = 5, 3
"""Words, and pairs of tokens, of a text whose attention is halved and doubled."""
HELD = 0.01
"""Part of the weights that the deletion test holds at their means."""
DELETION_DRAWS = 50


class Word(NamedTuple):
    """A word of a text and the indices of its tokens; or a special token, which is no part of a text."""

    word: str
    tokens: list[int]
    is_special: bool = False


def words_of(encoding: Any, names: Sequence[str], *texts: str) -> list[Word]:
    """Words of ``texts`` with their tokens, from a fast tokenizer's encoding with offsets; special tokens by name."""
    tokens: dict[Any, list[int]] = {}
    sequences, words, offsets = encoding.sequence_ids(0), encoding.word_ids(0), encoding["offset_mapping"]
    for index, word in enumerate(words):
        of_text = word is not None and sequences[index] is not None
        tokens.setdefault((sequences[index], word) if of_text else (None, index), []).append(index)
    return [
        Word(names[some[0]], some, is_special=True)
        if text is None
        else Word(texts[text][offsets[some[0]][0] : offsets[some[-1]][1]].strip(), some)
        for (text, _), some in tokens.items()
    ]


def attribution_of(
    network: Network[Any],
    batch: dict[str, Tensor],
    example: Example,
    names: Sequence[str],
    *,
    seed: int,
    reason: Reason,
) -> AttributionExample | None:
    """Where the variance of one input's prediction comes from; None if no attention call attends to its tokens.

    ``batch`` is the input alone, on the device; the deletion test needs a scale that is not learned.
    """
    shares = _shares(network, batch, example)
    if shares is None:
        return None
    moments, tokens, words, share, by_word = shares
    assert moments.slope is not None
    begins = second_text(network.codec, example, len(tokens))
    total = shares.total
    change = _Changing(network, batch, share, names)
    leading = total.argsort(descending=True)[:LEADING_WORDS].tolist()
    slope = {site: moments.slope[site] for site in share}
    first, second = (names[label] for label in moments.classes[0, :2].tolist())
    removed = _removed(network, batch, seed)
    return AttributionExample(
        example=example,
        reason=reason,
        classes=(first, second),
        spread=float(moments.std[0, list(names).index(example.predicted)]),
        expected=change.answer(moments.logits[0]),
        words=tuple(word.word for word in words),
        second=next((index for index, word in enumerate(words) if begins in word.tokens), None),
        sites=tuple(share),
        share=tuple(
            tuple(tuple(round(value, 5) for value in head) for head in item.tolist())
            for item in by_word.values()
        ),
        changes=(
            *(change.word(words[word_index], float(total[word_index])) for word_index in leading),
            *(
                change.pair(pair, tokens)
                for pair in leading_pairs(replace(moments, share=share, slope=slope), LEADING_PAIRS)[0]
            ),
        ),
        removed=removed,
        draws=DELETION_DRAWS if removed else 0,
    )


def leading_words(
    network: Network[Any], batch: dict[str, Tensor], example: Example, number: int = 3
) -> tuple[str, ...]:
    """The words of an input, special tokens aside, with the largest shares of the variance of its prediction."""
    shares = _shares(network, batch, example)
    if shares is None:
        return ()
    ranked = [shares.words[index] for index in shares.total.argsort(descending=True).tolist()]
    return tuple(word.word for word in ranked if not word.is_special)[:number]


class _Shares(NamedTuple):
    """Shares of the variance by call, ``[1, H, T, S]``, and of words, ``[H, words]``."""

    moments: Moments
    tokens: list[str]
    words: list[Word]
    share: dict[str, Tensor]
    by_word: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """Shares of the words over all calls and heads, ``[words]``."""
        return torch.stack([item.sum(dim=0) for item in self.by_word.values()]).sum(dim=0)


def _shares(network: Network[Any], batch: dict[str, Tensor], example: Example) -> _Shares | None:
    """Where the variance of a prediction comes from; None if no attention call attends to the tokens of the input."""
    moments = posterior_moments(network.program, batch, attribution=True, method="expansion")
    assert moments.share is not None
    tokens = network.codec.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    share = {site: value for site, value in moments.share.items() if value.shape[-1] == len(tokens)}
    if not share:
        return None
    words = _words(network.codec, example, batch["input_ids"][0].tolist(), tokens)
    by_word = {
        site: torch.stack([value[0, ..., word.tokens].sum(dim=(1, 2)) for word in words], dim=1)
        for site, value in share.items()
    }
    return _Shares(moments, tokens, words, share, by_word)


def _words(codec: Any, example: Example, ids: Sequence[int], tokens: Sequence[str]) -> list[Word]:
    """Words of an input; its tokens where the tokenizer does not say which word they belong to."""
    texts = [example.text] if example.pair is None else [example.text, example.pair]
    if getattr(codec, "is_fast", False):
        encoding = codec(*texts, truncation=True, max_length=len(ids), return_offsets_mapping=True)
        if list(encoding["input_ids"]) == list(ids):
            return words_of(encoding, tokens, *texts)
    special = set(getattr(codec, "all_special_tokens", ()))
    return [Word(token, [index], token in special) for index, token in enumerate(tokens)]


def _removed(network: Network[Any], batch: dict[str, Tensor], seed: int) -> dict[Any, float]:
    """The deletion test of one input, by share and by spread."""
    record = conversion(network.net)
    if record is None or record.method is None or record.method.learns_scale:
        return {}
    options: dict[str, Any] = {"fraction": HELD, "num_samples": DELETION_DRAWS, "seed": seed}
    return {
        by: float(variance_removed(network.program, batch, by=by, **options)) for by in ("share", "spread")
    }


@dataclass(frozen=True)
class _Changing:
    """One input with half and with twice of some attention."""

    network: Network[Any]
    batch: Mapping[str, Tensor]
    share: Mapping[str, Tensor]
    names: Sequence[str]

    def answer(self, logits: Tensor) -> Answer:
        """The likeliest class of logits ``[C]``."""
        probability, label = widened(logits).softmax(dim=-1).max(dim=-1)
        return Answer(label=self.names[int(label)], probability=float(probability))

    def word(self, word: Word, share: float) -> Change:
        """Attention to a word, at all calls."""
        factors = {}
        for site, value in self.share.items():
            factors[site] = value.new_ones(2, 1, 1, value.shape[-1])
            factors[site][..., word.tokens] = _half_and_twice(value)[..., None]
        half, twice = self._answers(factors)
        return Change(key=word.word, share=share, half=half, twice=twice)

    def pair(self, pair: Pair, tokens: Sequence[str]) -> Change:
        """Attention of one query to one key, by one head."""
        share = self.share[pair.site]
        factor = share.new_ones(2, *share.shape[1:])
        factor[:, pair.head, pair.query, pair.key] = _half_and_twice(share)[:, 0, 0]
        half, twice = self._answers({pair.site: factor})
        query = tokens[pair.query] if share.shape[-2] == len(tokens) else f"query {pair.query}"
        return Change(
            key=tokens[pair.key],
            query=query,
            site=pair.site,
            head=pair.head,
            share=pair.share,
            half=half,
            twice=twice,
        )

    def _answers(self, factors: Mapping[str, Tensor]) -> list[Answer]:
        both = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in self.batch.items()}
        return [self.answer(logits) for logits in reweighted_expectation(self.network.program, both, factors)]


def _half_and_twice(like: Tensor) -> Tensor:
    """Factors ``[2, 1, 1]``."""
    return like.new_tensor([0.5, 2.0]).view(2, 1, 1)
