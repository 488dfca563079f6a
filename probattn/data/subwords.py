"""A vocabulary of subwords, joint for source and target, by sentencepiece."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

from probattn.checks import optional
from probattn.data.errors import DataError
from probattn.data.files import unreadable
from probattn.files.durable import write_atomically

SubwordModel = Literal["unigram", "bpe"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
"""Padding, unknown, begin and end: tokens 0 to 3."""
NAMES = ("pad", "unk", "bos", "eos")
"""What sentencepiece calls them."""

LEAST_LONGEST = 10
"""Bytes: sentencepiece takes no smaller limit of a sentence's length."""


class Subwords:
    r"""Vocabulary of subwords (Kudo and Richardson 2018), made by :meth:`train` or :meth:`load`.

    Args:
        model: the serialised model of sentencepiece.

    Raises:
        DataError: sentencepiece is not installed, the bytes are not a model, or its special tokens are not 0 to 3.

    Example:
        >>> subwords = Subwords.train(["the dog sees the cat", "the cat sees the dog"], size=20)
        >>> tokens = subwords.encode("the cat")
        >>> min(tokens) > subwords.END, subwords.decode(tokens)
        (True, 'the cat')
    """

    PAD, UNKNOWN, BEGIN, END = range(len(SPECIAL_TOKENS))

    def __init__(self, model: bytes) -> None:
        sentencepiece = optional("subwords", "sentencepiece", "translation")
        self._model = model
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise DataError(
                "subwords: expected a sentencepiece model, got other bytes; train it again"
            ) from None
        tokens = [getattr(self._processor, f"{name}_id")() for name in NAMES]
        if tokens != list(range(len(SPECIAL_TOKENS))):
            raise DataError(
                f"subwords: expected padding, unknown, begin and end as tokens 0 to 3, got {tokens}"
            )

    @classmethod
    def train(cls, texts: Iterable[str], size: int, model: SubwordModel = "bpe") -> Subwords:
        """Learns subwords; equal texts in equal order give equal subwords.

        Args:
            texts: sentences of all languages that share the vocabulary.
            size: V, number of subwords, including the four special tokens.
            model: "bpe" (byte-pair encoding, Sennrich et al. 2016) or "unigram" (Kudo 2018).

        Returns:
            The vocabulary.

        Raises:
            DataError: the model is unknown, there is no text, or the texts do not allow this number of subwords.
        """
        if model not in get_args(SubwordModel):
            raise DataError(
                f"subwords: expected a model {' or '.join(get_args(SubwordModel))}, got {model!r}"
            )
        sentences = [text for text in texts if text.strip()]
        if not sentences:
            raise DataError("subwords: expected some text to learn from, got none")
        sentencepiece, made = optional("subwords", "sentencepiece", "translation"), BytesIO()
        special: dict[str, Any] = {f"{name}_id": number for number, name in enumerate(NAMES)}
        special |= {f"{name}_piece": piece for name, piece in zip(NAMES, SPECIAL_TOKENS, strict=True)}
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=made,
                vocab_size=size,
                model_type=model,
                character_coverage=1.0,
                max_sentence_length=max(LEAST_LONGEST, 1 + max(len(text.encode()) for text in sentences)),
                num_threads=1,  # the sums of several do not have one order
                minloglevel=3,
                **special,
            )
        except (RuntimeError, OSError) as error:
            raise DataError(f"subwords: {_reason(size, len(sentences), str(error))}") from None
        return cls(made.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> Subwords:
        """Reads a file of :meth:`save`; ``DataError`` if there is no such file, or it holds no subwords."""
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise unreadable(path, error) from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path | str) -> Path:
        """Writes a file that sentencepiece can also read, and returns its path."""
        write_atomically(Path(path), self._model)
        return Path(path)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def digest(self) -> str:
        """A digest of the subwords and their scores, which does not depend on the version of sentencepiece."""
        pieces = [(self._processor.id_to_piece(i), self._processor.get_score(i)) for i in range(len(self))]
        return hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]

    def __getstate__(self) -> bytes:
        return self._model

    def __setstate__(self, model: bytes) -> None:
        Subwords.__init__(self, model)

    def encode(self, text: str) -> list[int]:
        """Tokens of a sentence, without special tokens except for unknown characters."""
        return list(self._processor.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The sentence of tokens; padding, begin and end tokens are ignored."""
        return str(self._processor.decode([int(token) for token in tokens]))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The subword of each token as text; ``▁`` marks the first one of a word."""
        return [str(self._processor.id_to_piece(int(token))) for token in tokens]


def _reason(size: int, sentences: int, error: str) -> str:
    maximum = re.search(r"too high .*<= (\d+)", error)
    if maximum:
        return f"expected at most {maximum[1]} subwords of {sentences:,} sentences, got {size}; lower their number"
    minimum = re.search(r"required_chars\. \d+ vs (\d+)", error)
    if minimum:
        return (
            f"expected at least {minimum[1]} subwords, one for each character, got {size}; raise their number"
        )
    return f"{size} subwords cannot be learned from {sentences:,} sentences ({error.strip()})"
