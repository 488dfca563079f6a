"""Parallel text from files and from Multi30k; subwords; batches."""

import gzip
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.models.marian.modeling_marian import shift_tokens_right

from probattn.data import (
    DataError,
    DataWarning,
    PairCollate,
    SentencePairs,
    Subwords,
    TokenizedPairs,
    load_multi30k,
    read_pairs,
)

sentencepiece = pytest.importorskip("sentencepiece", reason="needs sentencepiece (the extra 'translation')")

ENGLISH = tuple(
    f"the {colour} {animal} runs ." for colour in ("red", "old", "big") for animal in ("dog", "cat", "cow")
)
GERMAN = tuple(
    f"der {colour} {animal} rennt ."
    for colour in ("rote", "alte", "große")
    for animal in ("Hund", "Kater", "Ochse")
)
PAIRS = SentencePairs(ENGLISH, GERMAN, ("en", "de"), "animals")


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return Subwords.train(ENGLISH + GERMAN, 60)


def write(folder: Path, name: str, lines: tuple[str, ...]) -> Path:
    data = ("\n".join(lines) + "\n").encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def test_pairs_are_read_line_by_line_packed_or_not(tmp_path: Path) -> None:
    odd = ("a\u2028b", " c\x85d ", "e\r")
    found = read_pairs(write(tmp_path, "a.en", odd), write(tmp_path, "a.de.gz", GERMAN[:3]), ("en", "de"))
    assert found.sources == ("a\u2028b", "c\x85d", "e") and found.targets == GERMAN[:3]
    assert found.source == f"{tmp_path}/a.en and {tmp_path}/a.de.gz"


def test_files_that_are_no_parallel_text_are_refused(tmp_path: Path) -> None:
    three, two = write(tmp_path, "a", ENGLISH[:3]), write(tmp_path, "b", GERMAN[:2])
    with pytest.raises(DataError, match=r"a translation for each of 3 sentences, got 2; the two sides must"):
        read_pairs(three, two)
    with pytest.raises(DataError, match=r"got a blank one in line 2 \(target\); remove it on both sides"):
        read_pairs(three, write(tmp_path, "c", ("x", " ", "y")))
    with pytest.raises(DataError, match="expected text, got an empty file"):
        read_pairs(three, write(tmp_path, "d.gz", ()))
    (tmp_path / "e.gz").write_bytes(gzip.compress(b"text")[:-9])
    with pytest.raises(DataError, match=r"e\.gz: expected a gzip file, got another or a damaged one"):
        read_pairs(three, tmp_path / "e.gz")
    with pytest.raises(DataError, match="at least one pair of sentences, got none"):
        SentencePairs((), (), ("a", "b"), "nothing")


def test_a_choice_of_pairs_is_fixed_and_nested() -> None:
    two, four = PAIRS.take(2), PAIRS.take(4)
    assert set(two.sources) < set(four.sources) and len(four) == 4
    places = [ENGLISH.index(text) for text in four.sources]
    assert places == sorted(places) and four.targets == tuple(GERMAN[place] for place in places)
    shuffled = PAIRS.rows([8, 3, 1, 0, 2, 4, 5, 6, 7])
    assert set(shuffled.take(4).sources) == set(four.sources)
    assert PAIRS.take(None) is PAIRS
    with pytest.raises(DataError, match="a limit >= 1, got 0"):
        PAIRS.take(0)


def test_the_other_way_round() -> None:
    other = PAIRS.reversed()
    assert (other.sources, other.targets, other.languages) == (GERMAN, ENGLISH, ("de", "en"))
    lengths = [len(PAIRS.sources[row]) + len(PAIRS.targets[row]) for row in PAIRS.shortest_first()]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_subwords_are_sentencepieces_and_come_out_as_they_went_in(model: str, tmp_path: Path) -> None:
    size = {"bpe": 60, "unigram": 34}[model]
    subwords = Subwords.train(ENGLISH + GERMAN, size, model)
    assert len(subwords) == size
    for text in ENGLISH + GERMAN:
        tokens = subwords.encode(text)
        assert min(tokens) > 3 and subwords.decode([2, *tokens, 3, 0]) == text
    again = Subwords.train(ENGLISH + GERMAN, size, model)
    assert again.digest == subwords.digest
    assert Subwords.train(GERMAN + ENGLISH[1:], size, model).digest != subwords.digest
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(subwords.save(tmp_path / "subwords.model"))
    )
    assert processor.encode(GERMAN[0]) == subwords.encode(GERMAN[0])
    assert subwords.pieces(subwords.encode("the dog")) == processor.encode("the dog", out_type=str)
    for copied in (Subwords.load(tmp_path / "subwords.model"), pickle.loads(pickle.dumps(subwords))):
        assert copied.encode(GERMAN[2]) == subwords.encode(GERMAN[2])


def test_characters_never_seen_are_unknown(subwords: Subwords) -> None:
    assert Subwords.UNKNOWN in subwords.encode("the Ω runs")


def test_subwords_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for size, words in (
        (5000, r"at most \d+ subwords of 18 sentences, got 5000"),
        (8, r"at least \d+ subwords, one for"),
    ):
        for model in ("bpe", "unigram"):
            with pytest.raises(DataError, match=words):
                Subwords.train(ENGLISH + GERMAN, size, model)
    with pytest.raises(DataError, match="expected a model unigram or bpe, got 'words'"):
        Subwords.train(ENGLISH, 60, "words")
    with pytest.raises(DataError, match="some text to learn from, got none"):
        Subwords.train(["", "  "], 60)
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"other: subwords: expected a sentencepiece model, got other bytes"):
        Subwords.load(tmp_path / "other")
    with pytest.raises(DataError, match=r"none: cannot be read \(No such file"):
        Subwords.load(tmp_path / "none")


def test_rows_end_and_have_lengths(subwords: Subwords) -> None:
    rows = TokenizedPairs(PAIRS, subwords)
    assert len(rows) == 9
    expected = {"input_ids": [*subwords.encode(ENGLISH[4]), 3], "labels": [*subwords.encode(GERMAN[4]), 3]}
    assert rows[4] == expected
    assert rows.lengths() == [len(row["input_ids"]) + len(row["labels"]) for row in rows]
    assert rows.mean_target_length == sum(len(row["labels"]) for row in rows) / 9


def test_long_sentences_are_cut_or_refused(subwords: Subwords) -> None:
    long = SentencePairs((*ENGLISH, "dog " * 30), (*GERMAN, "Hund"), ("en", "de"), "animals")
    message = r"animals, en: 1 of 10 sentences are longer than 25 tokens .*sentence 10, has"
    with pytest.warns(DataWarning, match=message):
        rows = TokenizedPairs(long, subwords, max_length=25)
    assert len(rows[9]["input_ids"]) == 25 and rows[9]["input_ids"][-1] == 3
    with pytest.raises(DataError, match="set on_long to 'truncate'"):
        TokenizedPairs(long, subwords, max_length=25, on_long="refuse")
    with pytest.raises(DataError, match="at least 2 tokens"):
        TokenizedPairs(PAIRS, subwords, max_length=1)
    longest = max(len(tokens) for row in TokenizedPairs(PAIRS, subwords) for tokens in row.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TokenizedPairs(PAIRS, subwords, max_length=longest, on_long="refuse")


def test_batches_shift_the_target_as_transformers_does(subwords: Subwords) -> None:
    rows = TokenizedPairs(PAIRS, subwords)
    batch = PairCollate()([rows[row] for row in range(9)])
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    expected = shift_tokens_right(batch["labels"], Subwords.PAD, Subwords.BEGIN)
    valid = batch["labels"] != -100
    assert torch.equal(batch["decoder_attention_mask"], valid.long())
    shifted = expected.where(valid, Subwords.PAD)
    assert torch.equal(batch["decoder_input_ids"], shifted)
    assert torch.equal(batch["attention_mask"], (batch["input_ids"] != Subwords.PAD).long())
    for row in range(9):
        assert batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist() == rows[row]["input_ids"]
        assert batch["labels"][row][valid[row]].tolist() == rows[row]["labels"]


def small_multi30k(folder: Path) -> Path:
    for number, part in enumerate(("train", "val", "test_2016_flickr")):
        for language, side in (("en", ENGLISH), ("de", GERMAN)):
            write(folder, f"{part}.{language}.gz", side[: 3 + number])
    return folder


def test_multi30k_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "multi30k").mkdir()
    folder = small_multi30k(tmp_path / "multi30k")
    found = load_multi30k(folder)
    assert [len(pairs) for pairs in found.roles().values()] == [3, 4, 5]
    assert found.test.source == "multi30k en-de (test_2016_flickr)" and "CC BY" in found.test.licence
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    assert load_multi30k(source="de", target="en").train.sources == GERMAN[:3]


def test_multi30k_with_another_test_set(tmp_path: Path) -> None:
    folder = small_multi30k(tmp_path)
    for path in list(folder.glob("test_2016_flickr.*")):
        path.rename(path.with_name(path.name.replace("test_2016_flickr", "test_2017_mscoco")))
    with pytest.raises(DataError, match=r"lacks test_2016_flickr\.en\.gz"):
        load_multi30k(folder)
    found = load_multi30k(folder, test="test_2017_mscoco")
    assert found.test.source == "multi30k en-de (test_2017_mscoco)" and len(found.train) == 3


def test_multi30k_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "multi30k").mkdir()
    folder = small_multi30k(tmp_path / "multi30k")
    (folder / "val.de.gz").unlink()
    with pytest.raises(DataError, match=r"multi30k: .* lacks val\.de\.gz; https://github\.com/multi30k"):
        load_multi30k(folder)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)
    with pytest.raises(DataError, match="the environment variable PROBATTN_DATA to name one"):
        load_multi30k()
    with pytest.raises(DataError, match="expected two of en, de, got 'en' and 'fr'"):
        load_multi30k(folder, target="fr")


def test_multi30k_itself(public_data: Callable[..., Path]) -> None:
    public_data("multi30k")
    found = load_multi30k()
    assert [len(pairs) for pairs in found.roles().values()] == [29_000, 1_014, 1_000]
    assert found.test.sources[0] == "A man in an orange hat starring at something."
    assert found.test.targets[0] == "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."
    assert found.train.targets[0].startswith("Zwei junge weiße Männer")


def test_short_texts_have_subwords_too():
    subwords = Subwords.train(["a b", "c d"] * 50, 9)
    assert len(subwords) == 9
    with pytest.raises(DataError, match=r"expected at most \d\d? subwords of 100 sentences, got 5000"):
        Subwords.train(["a b", "c d"] * 50, 5000)


def test_texts_in_place_of_sentences_are_refused():
    with pytest.raises(DataError, match="expected sources as a tuple of sentences, got the text 'ab'"):
        SentencePairs("ab", "cd", ("en", "de"), "letters")
