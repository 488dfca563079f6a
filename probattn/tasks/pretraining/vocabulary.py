"""The tokenizer of a pre-trained network: one of a path, or a WordPiece vocabulary that is learned from the texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from probattn.data import DataError
from probattn.models.hosts.pretrained import StoredNetworkError, open_pretrained
from probattn.tasks.errors import RunError, as_run_error

PAD, UNKNOWN, BEGIN, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first tokens of a vocabulary, as in BERT's and ELECTRA's."""
CONTINUING = "##"
"""What a token within a word begins with."""
CHARACTERS = 1000
"""Most different characters of a vocabulary, the most frequent ones."""
NEEDED = ("mask_token", "pad_token", "cls_token", "sep_token")


def learned_tokenizer(
    texts: Callable[[], Iterable[str]], size: int, *, lowercase: bool = True, positions: int = 512
) -> Any:
    """BERT's WordPiece of at most ``size`` tokens, a function of the texts, which are read several times."""
    from tokenizers import processors

    characters, within = _characters(texts(), lowercase)
    if not characters:
        raise DataError("vocabulary: expected texts with characters, got none")
    while len(SPECIAL) + len(characters) + len(within) > size:
        within.discard(characters.pop())
    if not characters:
        raise DataError(
            f"vocabulary: expected more than {size} tokens, of which {len(SPECIAL)} are special ones; give some "
            "hundred or more"
        )
    numbered = [CONTINUING + item for item in sorted(within)]
    vocabulary = _learned(texts(), characters, size, lowercase, (*SPECIAL, *numbered)).get_vocab()
    words = _tokenizer(vocabulary, lowercase)
    words.add_special_tokens(list(SPECIAL))
    words.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} $B:1 {END}:1",
        special_tokens=[(name, words.token_to_id(name)) for name in (BEGIN, END)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=positions,
        unk_token=UNKNOWN,
        pad_token=PAD,
        cls_token=BEGIN,
        sep_token=END,
        mask_token=MASK,
    )


def _tokenizer(vocabulary: dict[str, int] | None, lowercase: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = (
        models.WordPiece(unk_token=UNKNOWN)
        if vocabulary is None
        else models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100)
    )
    words = Tokenizer(model)
    words.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    return words


def _characters(texts: Iterable[str], lowercase: bool) -> tuple[list[str], set[str]]:
    """The most frequent characters, of equally frequent ones the first in their order; and those within words."""
    tokenizer = _tokenizer(None, lowercase)
    words: Counter[str] = Counter()
    for text in texts:
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
        words.update(word for word, _ in pieces)
    counts: Counter[str] = Counter()
    for word, number in words.items():
        counts.update({item: number * word.count(item) for item in set(word)})
    frequent = sorted(counts, key=lambda character: (-counts[character], character))[:CHARACTERS]
    return frequent, {item for word in words for item in word[1:]} & set(frequent)


def _learned(
    texts: Iterable[str], characters: list[str], size: int, lowercase: bool, first: tuple[str, ...]
) -> Any:
    """A tokenizer whose vocabulary begins with ``first`` and is learned from texts."""
    from tokenizers import trainers

    words = _tokenizer(None, lowercase)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=list(first),
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    return words


def loaded_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or of the hub; ``RunError`` where it cannot be read or lacks a special token."""
    with as_run_error(StoredNetworkError, where="pretraining.tokenizer"):
        tokenizer = open_pretrained(AutoTokenizer, source)
    missing = next((name for name in NEEDED if getattr(tokenizer, name, None) is None), None)
    if missing is not None:
        raise RunError(
            f"pretraining.tokenizer {source!r}: expected a tokenizer with a {missing}, got one without; take that of a "
            "masked language model, or null to learn a vocabulary"
        )
    return tokenizer


def piece(codec: Any, number: int) -> str:
    """A token as it reads within a text, with the space before it where it begins a word."""
    before, both = (
        codec.decode([codec.mask_token_id, *more], clean_up_tokenization_spaces=False)
        for more in ([], [number])
    )
    return str(both).removeprefix(before)
