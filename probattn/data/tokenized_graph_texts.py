"""Batches of tensors from texts about graphs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from probattn.data.errors import DataError, warn_long
from probattn.data.files import read_text
from probattn.data.graph_texts import GraphText, GraphTexts
from probattn.data.sentence_pairs import PairCollate, cut_to, padded
from probattn.data.subwords import SPECIAL_TOKENS, Subwords
from probattn.data.tokens import TokenizedRows
from probattn.files.durable import write_atomically

PAD, UNKNOWN, END = Subwords.PAD, Subwords.UNKNOWN, Subwords.END
NO_RELATION = -1


@dataclass(frozen=True)
class GraphVocabulary:
    """Words of titles, entities and texts, types of entities, and kinds of relations.

    Tokens 0 to 3 are padding, unknown, begin and end, followed by the types and the words, V tokens in all. Token V + k
    is entity k of a row.

    Attributes:
        types: names of types.
        words: all other words.
        relations: names of the kinds of relations.

    Example:
        >>> row = GraphText("a parser", ("fast parser",), ("method",), (), "a <method_0> !")
        >>> vocabulary = GraphVocabulary.of(GraphTexts((row,), (), "one"), min_frequency=2)
        >>> vocabulary.words, len(vocabulary), vocabulary.labels(row)
        (('a', 'parser'), 7, [5, 7, 1, 3])
        >>> row.named(vocabulary.tokens([5, 7, 3]))
        'a fast parser'
    """

    types: tuple[str, ...]
    words: tuple[str, ...]
    relations: tuple[str, ...]

    @classmethod
    def of(cls, texts: GraphTexts, min_frequency: int = 1) -> GraphVocabulary:
        """The vocabulary of training texts, the most frequent words first.

        Args:
            texts: training texts.
            min_frequency: minimum number of occurrences of a word in titles, entities and texts together.
        """
        counts: Counter[str] = Counter()
        for row in texts.rows:
            counts.update(row.title.split())
            for entity in row.entities:
                counts.update(entity.split())
            counts.update(token for token in row.tokens() if isinstance(token, str))
        frequent = [word for word, number in counts.items() if number >= min_frequency]
        if not frequent:
            raise DataError(
                f"{texts.source}: expected words that stand in it {min_frequency} times, found none; lower "
                "min_frequency"
            )
        return cls(
            texts.types, tuple(sorted(frequent, key=lambda word: (-counts[word], word))), texts.relations
        )

    def __len__(self) -> int:
        return len(SPECIAL_TOKENS) + len(self.types) + len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        first = len(SPECIAL_TOKENS) + len(self.types)
        return {word: number for number, word in enumerate(self.words, first)}

    def encode(self, words: str) -> list[int]:
        """Tokens of words that are separated by spaces."""
        return [self._numbers.get(word, UNKNOWN) for word in words.split()]

    def type_token(self, name: str) -> int:
        """Token of a type."""
        return len(SPECIAL_TOKENS) + self.types.index(name)

    @property
    def type_tokens(self) -> range:
        """Tokens of all types."""
        return range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + len(self.types))

    def labels(self, row: GraphText) -> list[int]:
        """Tokens of a text with its end token; entity k is token V + k."""
        return [
            len(self) + token if isinstance(token, int) else self._numbers.get(token, UNKNOWN)
            for token in row.tokens()
        ] + [END]

    def tokens(self, labels: Sequence[int]) -> list[str | int]:
        """Words, and indices of entities, for tokens; special tokens other than "unknown" are ignored."""
        first = len(SPECIAL_TOKENS) + len(self.types)
        names = {UNKNOWN: SPECIAL_TOKENS[UNKNOWN]}
        decoded: list[str | int] = []
        for label in labels:
            if label >= len(self):
                decoded.append(label - len(self))
            elif label >= first:
                decoded.append(self.words[label - first])
            elif label in names:
                decoded.append(names[label])
        return decoded

    def save(self, path: Path) -> None:
        """Writes the vocabulary as JSON."""
        content = {"types": self.types, "words": self.words, "relations": self.relations}
        write_atomically(path, json.dumps(content, ensure_ascii=False).encode())

    @classmethod
    def load(cls, path: Path) -> GraphVocabulary:
        """Reads a file of :meth:`save`; ``DataError`` for any other file."""
        text = read_text(path)
        try:
            content: Any = json.loads(text)
            names = {name: tuple(content[name]) for name in ("types", "words", "relations")}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: expected a vocabulary that a run has written ({error!r})") from None
        return cls(**names)


class TokenizedGraphTexts(TokenizedRows):
    """Texts about graphs as tokens, without padding; :class:`GraphTextCollate` makes batches of rows.

    A row has ``input_ids`` (the title), ``entity_ids`` (a list per entity), ``entity_types``, ``relations`` and
    ``labels``, the text with its end token.

    Args:
        texts: the rows.
        vocabulary: vocabulary of the training texts.
        max_length: maximum number of tokens of a text with its end token, >= 2; longer texts are truncated.

    Raises:
        DataError: ``max_length`` is below 2, or the vocabulary lacks types or relations.

    Warns:
        DataWarning: the number of truncated texts.
    """

    counted = ("labels",)

    def __init__(self, texts: GraphTexts, vocabulary: GraphVocabulary, *, max_length: int = 400) -> None:
        if max_length < 2:
            raise DataError(f"max_length: expected at least 2 tokens (one is the end), got {max_length}")
        texts.check_types(vocabulary.types)
        self.texts, self.vocabulary = texts, vocabulary
        self._rows = [self._encoded(row) for row in texts.rows]
        warn_long(texts.source, self.lengths(), max_length, "texts", "tokens with their end")
        for row in self._rows:
            row["labels"] = cut_to(row["labels"], max_length)

    def _encoded(self, row: GraphText) -> dict[str, Any]:
        words = self.vocabulary
        return {
            "input_ids": words.encode(row.title),
            "entity_ids": [words.encode(entity) for entity in row.entities],
            "entity_types": [words.type_token(name) for name in row.types],
            "relations": [list(relation) for relation in row.relations],
            "labels": words.labels(row),
        }


class GraphTextCollate(PairCollate):
    """Makes a batch of rows of :class:`TokenizedGraphTexts`; each field is padded on the right to its longest.

    Example:
        >>> row = {"input_ids": [5, 6], "entity_ids": [[7], [8, 9]], "entity_types": [4, 4], "labels": [5, 21, 3]}
        >>> batch = GraphTextCollate()([row | {"relations": [[0, 2, 1]]}, row | {"relations": []}])
        >>> batch["entity_ids"].shape, batch["relations"].tolist()
        (torch.Size([2, 2, 2]), [[[0, 2, 1]], [[-1, -1, -1]]])
        >>> batch["decoder_input_ids"][0]
        tensor([ 2,  5, 21])
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pads and stacks at least one row.

        Returns int64 tensors: ``input_ids`` and ``attention_mask`` ``[B, S]``, ``entity_ids`` ``[B, K, W]``,
        ``entity_types`` ``[B, K]``, ``relations`` ``[B, M, 3]`` (-1 at padding), ``decoder_input_ids`` (the text
        shifted by one, "begin" first), ``decoder_attention_mask`` and ``labels`` (-100 at padding) ``[B, T]``.
        """
        words = max(len(entity) for row in rows for entity in row["entity_ids"])
        entities = [[[*ids, *[PAD] * (words - len(ids))] for ids in row["entity_ids"]] for row in rows]
        return {
            **super().__call__(rows),
            "entity_ids": padded(entities, [PAD] * words),
            "entity_types": padded([row["entity_types"] for row in rows], PAD),
            "relations": padded([row["relations"] for row in rows], [NO_RELATION] * 3, minimum=1),
        }
