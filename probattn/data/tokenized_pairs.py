"""From sentence pairs to batches of tensors for an encoder-decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from probattn.data.errors import DataError, warn_truncated
from probattn.data.sentence_pairs import SentencePairs
from probattn.data.subwords import Subwords
from probattn.data.tokens import OnLong

IGNORED = -100
"""Label of a position that is padding."""


class TokenizedPairs(Dataset[dict[str, list[int]]]):
    """Sentence pairs as subwords, tokenized once, without padding.

    A row has ``input_ids``, the source with its end, and ``labels``, the target with its end; :class:`PairCollate`
    makes batches of rows.

    Args:
        pairs: the sentences.
        subwords: of both languages.
        max_length: most tokens of a sentence with its end, >= 2.
        on_long: what becomes of longer ones: "truncate" keeps their beginning and warns with their number, once a
            source and process; "refuse" raises.

    Raises:
        DataError: a ``max_length`` below 2; sentences too long and ``on_long="refuse"``.

    Warns:
        DataWarning: how many sentences were truncated.
    """

    def __init__(
        self, pairs: SentencePairs, subwords: Subwords, *, max_length: int = 256, on_long: OnLong = "truncate"
    ) -> None:
        if max_length < 2:
            raise DataError(f"max_length: expected at least 2 tokens (one is the end), got {max_length}")
        self.pairs = pairs
        sides = [[subwords.encode(text) for text in side] for side in (pairs.sources, pairs.targets)]
        for language, side in zip(pairs.languages, sides, strict=True):
            _check_lengths(f"{pairs.source}, {language}", side, max_length - 1, on_long)
        self._sources, self._targets = (
            [[*tokens[: max_length - 1], Subwords.END] for tokens in side] for side in sides
        )

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        return {"input_ids": self._sources[row], "labels": self._targets[row]}

    def lengths(self) -> list[int]:
        """Number of tokens of each pair, source and target together."""
        return [
            len(source) + len(target) for source, target in zip(self._sources, self._targets, strict=True)
        ]

    @property
    def mean_target_length(self) -> float:
        """Mean number of target tokens of a pair, ends included."""
        return sum(map(len, self._targets)) / len(self)


def _check_lengths(what: str, side: Sequence[Sequence[int]], limit: int, on_long: OnLong) -> None:
    lengths = [len(tokens) for tokens in side]
    long = sum(length > limit for length in lengths)
    if not long:
        return
    message = (
        f"{what}: {long:,} of {len(side):,} sentences are longer than {limit + 1} tokens with their end (the longest, "
        f"sentence {lengths.index(max(lengths)) + 1:,}, has {max(lengths) + 1:,})"
    )
    if on_long == "refuse":
        raise DataError(f"{message}; shorten them, raise max_length, or set on_long to 'truncate'")
    warn_truncated(what, limit, long, message)


class PairCollate:
    """Makes a batch of rows of :class:`TokenizedPairs`, each side as long as its longest, padded on the right.

    Example:
        >>> batch = PairCollate()([{"input_ids": [5, 3], "labels": [6, 7, 3]}, {"input_ids": [4, 8, 3], "labels": [3]}])
        >>> batch["decoder_input_ids"]
        tensor([[2, 6, 7],
                [2, 0, 0]])
        >>> batch["labels"]
        tensor([[   6,    7,    3],
                [   3, -100, -100]])
    """

    def __call__(self, rows: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Tensor]:
        """Pads and stacks the ``input_ids`` and ``labels`` of at least one row.

        Returns int64 tensors: ``input_ids`` and ``attention_mask`` ``[B, S]``; ``decoder_input_ids`` (the target
        shifted by one, "begin" first), ``decoder_attention_mask`` and ``labels`` (-100 at padding) ``[B, T]``.
        """
        sources = [row["input_ids"] for row in rows]
        targets = [row["labels"] for row in rows]
        shifted = [[Subwords.BEGIN, *target[:-1]] for target in targets]
        return {
            "input_ids": padded(sources, Subwords.PAD),
            "attention_mask": padded([[1] * len(tokens) for tokens in sources], 0),
            "decoder_input_ids": padded(shifted, Subwords.PAD),
            "decoder_attention_mask": padded([[1] * len(tokens) for tokens in targets], 0),
            "labels": padded(targets, IGNORED),
        }


def padded(rows: Sequence[Sequence[Any]], fill: Any, minimum: int = 0) -> Tensor:
    """Rows as long as the longest, ``minimum`` at least, filled up on the right."""
    longest = max([minimum, *map(len, rows)])
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
