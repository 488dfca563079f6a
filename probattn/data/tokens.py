"""Batches of tensors from texts, for a Hugging Face network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, warn_long

OnLong = Literal["truncate", "refuse"]

FEATURES = ("input_ids", "attention_mask", "token_type_ids")
"""Features that are kept of a tokenizer's output."""

SPECIAL = 2
"""Special tokens around a single text."""

CHUNK = 1000
"""Texts that are handed to a tokenizer at once."""

_UNLIMITED = 10**6
_PADDING_OFFSET = frozenset(
    {"camembert", "data2vec-text", "ibert", "mpnet", "roberta", "roberta-prelayernorm"}
    | {"xlm-roberta", "xlm-roberta-xl", "xmod"}
)
"""Model types that count positions from the padding token's number plus one."""


def length_limit(tokenizer: Any, config: Any = None) -> int | None:
    """Maximum number of input tokens of a network, including special tokens; None without a limit.

    Args:
        tokenizer: a Hugging Face tokenizer.
        config: configuration of the network, whose number of positions is a limit too.

    Returns:
        The smaller of the two limits.

    Example:
        >>> from transformers import BertConfig, RobertaConfig
        >>> class Tokenizer:
        ...     model_max_length = 10**30
        >>> length_limit(Tokenizer()), length_limit(Tokenizer(), BertConfig())
        (None, 512)
        >>> length_limit(Tokenizer(), RobertaConfig(max_position_embeddings=514))
        512
    """
    limits = [tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        offset = config.pad_token_id + 1 if config.model_type in _PADDING_OFFSET else 0
        limits.append(positions - offset)
    limit = min(limits)
    return None if limit > _UNLIMITED else int(limit)


class TokenizedRows(Dataset[dict[str, Any]]):
    """Rows of lists of token numbers, without padding; the length of a row is that of its lists in ``counted``."""

    counted: ClassVar[tuple[str, ...]] = ("input_ids",)
    _rows: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self._rows[row]

    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        return [sum(len(row[name]) for name in self.counted) for row in self._rows]

    @property
    def mean_target_length(self) -> float:
        """Mean number of tokens of the texts that are to be written, ends included."""
        return sum(len(row["labels"]) for row in self._rows) / len(self)


class TokenizedTexts(TokenizedRows):
    """Texts of a data set as token ids, tokenized once, without padding.

    A row is a dictionary with the lists ``input_ids``, ``attention_mask`` and, if tokenizer and network use token
    types, ``token_type_ids``, and with the class number ``labels`` if the data have labels. :class:`PadCollate` makes
    batches of rows. A pair is one row with the tokenizer's separators; its second text has token type 1, if used.

    Args:
        data: the texts.
        tokenizer: a Hugging Face tokenizer.
        max_length: maximum number of tokens of a text, including special tokens; None for the limit of the network.
        config: configuration of the network, for its number of positions.
        on_long: what happens to longer texts: "truncate" keeps their beginning (tokens of a pair are removed from the
            longer text) and warns with their number, once per source and process; "refuse" raises.

    Attributes:
        truncated: number of truncated texts.
        longest: number of tokens of the longest truncated text, 0 if none is truncated.

    Raises:
        DataError: ``max_length`` leaves no room for a token (of each text of a pair) or exceeds the network's limit; or
            texts are too long and ``on_long="refuse"``.

    Warns:
        DataWarning: the number of truncated texts.
    """

    def __init__(
        self,
        data: TextDataset,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        config: Any = None,
        on_long: OnLong = "truncate",
    ) -> None:
        self.data = data
        special = SPECIAL if data.pairs is None else int(tokenizer.num_special_tokens_to_add(pair=True))
        minimum = special + (1 if data.pairs is None else 2)
        self.max_length = _checked_length(max_length, length_limit(tokenizer, config), minimum, special)
        self._names = FEATURES if getattr(config, "type_vocab_size", 2) > 1 else FEATURES[:2]
        self._rows = []
        for start in range(0, len(data), CHUNK):
            self._rows += self._encode(tokenizer, range(start, min(start + CHUNK, len(data))))
        lengths, limit = self.lengths(), self.max_length
        long = [row for row, length in enumerate(lengths) if limit is not None and length > limit]
        self.truncated, self.longest = len(long), max((lengths[row] for row in long), default=0)
        if limit is not None and long:
            warn_long(data.source, lengths, limit, "texts", "tokens", refuse=on_long == "refuse")
            for row, encoded in zip(long, self._encode(tokenizer, long, limit), strict=True):
                self._rows[row] = encoded

    def __getitem__(self, row: int) -> dict[str, Any]:
        labels = self.data.labels
        return {**self._rows[row], **({} if labels is None else {"labels": labels[row]})}

    def _encode(
        self, tokenizer: Any, rows: Sequence[int], max_length: int | None = None
    ) -> list[dict[str, list[int]]]:
        texts = [[self.data.texts[row] for row in rows]]
        if self.data.pairs is not None:
            texts.append([self.data.pairs[row] for row in rows])
        encoded = tokenizer(
            *texts, padding=False, truncation=max_length is not None, max_length=max_length, verbose=False
        )
        names = [name for name in self._names if name in encoded]
        return [{name: encoded[name][index] for name in names} for index in range(len(rows))]


def _checked_length(max_length: int | None, limit: int | None, minimum: int, special: int) -> int | None:
    if max_length is None:
        return limit
    if max_length < minimum:
        words = {2: "two"}.get(special, str(special))
        raise DataError(
            f"max_length: expected at least {minimum} tokens ({words} are special ones), got {max_length}"
        )
    if limit is not None and max_length > limit:
        raise DataError(
            f"max_length: expected at most {limit}, the longest input of this network, got {max_length}"
        )
    return max_length


class PadCollate:
    """Makes a batch of rows, padded to the longest as the tokenizer pads.

    Args:
        tokenizer: a Hugging Face tokenizer with a padding token.

    Raises:
        DataError: the tokenizer has no padding token.

    Example:
        >>> class Tokenizer:
        ...     pad_token_id, pad_token_type_id, padding_side = 9, 0, "right"
        >>> rows = [
        ...     {"input_ids": [1, 2], "attention_mask": [1, 1], "labels": 0},
        ...     {"input_ids": [3], "attention_mask": [1], "labels": 1},
        ... ]
        >>> PadCollate(Tokenizer())(rows)["input_ids"]
        tensor([[1, 2],
                [3, 9]])
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.pad_token_id is None:
            raise DataError(
                "tokenizer: expected a padding token, got none; set one: tokenizer.pad_token = tokenizer.eos_token, "
                "and the network's config.pad_token_id to its number"
            )
        self._fill = {
            "input_ids": tokenizer.pad_token_id,
            "attention_mask": 0,
            "token_type_ids": tokenizer.pad_token_type_id,
        }
        self._left = tokenizer.padding_side == "left"

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pads and stacks at least one row of :class:`TokenizedTexts`: int64 ``[B, T]``, and any ``labels`` ``[B]``."""
        length = max(1, *(len(row["input_ids"]) for row in rows))  # texts without a token are padding alone
        batch = {
            name: torch.tensor([self._pad(row[name], fill, length) for row in rows])
            for name, fill in self._fill.items()
            if name in rows[0]
        }
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        return batch

    def _pad(self, values: list[int], fill: int, length: int) -> list[int]:
        padding = [fill] * (length - len(values))
        return padding + values if self._left else values + padding
