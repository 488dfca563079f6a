"""A tokenizer of whole words, made from training texts, for networks that are trained from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from probattn.data.errors import DataError

WordSplit = Literal["spaces", "words"]

PADDING, UNKNOWN = "[PAD]", "[UNK]"
"""The first two words of every vocabulary."""

_WORDS = r"\d+(?:[.,]\d+)+|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]"
"""Numbers, words (hyphens inside belong to them), English clitics apart as in treebanks, single signs."""


def word_tokenizer(
    texts: Iterable[str], *, size: int | None = None, min_frequency: int = 1, split: WordSplit = "words"
) -> Any:
    """A tokenizer whose vocabulary is the words of these texts, in lower case.

    No special tokens stand around a text. Padding is number 0, and every word that the vocabulary lacks is number 1.

    Args:
        texts: what the network is trained on.
        size: most words of the vocabulary, the two special ones included, >= 3: the most frequent ones, of equally
            frequent ones those that come first in the order of their characters. None for all.
        min_frequency: how often a word must stand in the texts, >= 1.
        split: "words" parts punctuation and English clitics (``do n't``, ``it 's``) from words, as treebanks and the
            vocabularies of word vectors do; "spaces" takes what stands between spaces, for texts that are parted so
            already (SST-2, TREC).

    Returns:
        A ``PreTrainedTokenizerFast`` of transformers: it can be saved, and ``AutoTokenizer`` loads it.

    Raises:
        DataError: an option is out of its range, or no word is left.

    Example:
        >>> tokenizer = word_tokenizer(["It isn't bad.", "Not bad at all!"], min_frequency=2)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("bad, not good")["input_ids"])
        ['bad', '[UNK]', '[UNK]', '[UNK]']
        >>> word_tokenizer(["It isn't bad."]).tokenize("it isn't")
        ['it', 'is', "n't"]
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    _check(size, min_frequency, split)
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = (
        pre_tokenizers.WhitespaceSplit()
        if split == "spaces"
        else pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    )
    trainer = trainers.WordLevelTrainer(
        vocab_size=2**31 if size is None else size,
        min_frequency=min_frequency,
        special_tokens=[PADDING, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() < 3:
        raise DataError(
            f"word_tokenizer: expected a word that occurs {min_frequency} times or more, found none; lower "
            "min_frequency or give more texts"
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PADDING, unk_token=UNKNOWN)


def _check(size: int | None, min_frequency: int, split: str) -> None:
    if size is not None and size < 3:
        raise DataError(f"word_tokenizer: expected a size >= 3 (two words are special), got {size}")
    if min_frequency < 1:
        raise DataError(f"word_tokenizer: expected a min_frequency >= 1, got {min_frequency}")
    if split not in get_args(WordSplit):
        raise DataError(
            f"word_tokenizer: expected split to be one of {', '.join(map(repr, get_args(WordSplit)))}, got {split!r}"
        )
