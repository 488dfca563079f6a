"""The tokenizer of a pre-trained network: one of a path, or a WordPiece vocabulary that is learned from the corpus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from probattn.data import DataError
from probattn.models.hosts.pretrained import StoredNetworkError, open_pretrained
from probattn.tasks.errors import RunError, one_line

PAD, UNKNOWN, BEGIN, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first tokens of a vocabulary, as in BERT's and ELECTRA's."""
NEEDED = ("mask_token", "pad_token", "cls_token", "sep_token")


def learned_tokenizer(
    texts: Iterable[str], size: int, *, lowercase: bool = True, positions: int = 512
) -> Any:
    """A tokenizer with a WordPiece vocabulary of some texts, which reads as BERT's does.

    Args:
        texts: what it is learned from.
        size: most tokens, the five special ones included.
        lowercase: whether case and accents are left out.
        positions: most tokens of a text that its network reads.

    Returns:
        A ``PreTrainedTokenizerFast`` of transformers: it can be saved, and ``AutoTokenizer`` loads it.

    Raises:
        DataError: the texts have no token.

    Example:
        >>> tokenizer = learned_tokenizer(["the film was good", "a good film"], 60)
        >>> tokenizer.tokenize("Good!")
        ['good', '[UNK]']
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    words = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    words.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    words.train_from_iterator(texts, trainer)
    if words.get_vocab_size() <= len(SPECIAL):
        raise DataError("vocabulary: expected texts with letters or signs, got none")
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


def loaded_tokenizer(source: str) -> Any:
    """The tokenizer of a folder, or of a name on the hub.

    Raises:
        RunError: it cannot be read, or has no token for masked places, padding, begin or end.
    """
    try:
        tokenizer = open_pretrained(AutoTokenizer, source)
    except StoredNetworkError as error:
        raise RunError(f"pretraining.tokenizer: {one_line(error)}") from error
    missing = next((name for name in NEEDED if getattr(tokenizer, name, None) is None), None)
    if missing is not None:
        raise RunError(
            f"pretraining.tokenizer {source!r}: expected a tokenizer with a {missing}, got one without; take that of a "
            "masked language model, or null for a vocabulary of the corpus"
        )
    return tokenizer
