"""Texts as streams: what is read, held out, cut and shuffled, and what is refused."""

import gzip
import math
import random
from itertools import chain, islice

import pytest
import runs

from probattn.data import DataError, split_of
from probattn.data.files import read_lines, read_text
from probattn.tasks.errors import RunError
from probattn.tasks.pretraining import stream as streams
from probattn.tasks.pretraining.stream import MULTI30K, NAMED, PassageStream, TextStream, passages, with_masks
from probattn.tasks.pretraining.vocabulary import learned_tokenizer, loaded_tokenizer


@pytest.fixture
def file(tmp_path):
    runs.write_corpus(tmp_path)
    return tmp_path / "corpus.txt"


@pytest.fixture
def source(file):
    return TextStream((str(file),), 0.1, 0.1)


@pytest.fixture(scope="module")
def tokenizer():
    return learned_tokenizer(lambda: [*runs.WORDS, *map(str, range(10))] * 3, 80)


def ids(rows):
    return [row["original_ids"] for row in rows]


def test_every_text_is_in_one_part(source, file):
    lines = [line for line in file.read_text().split("\n") if line]
    training = list(source.training())
    held = [source.held_out(split) for split in ("validation", "test")]
    assert all(held) and sorted([*training, *held[0], *held[1]]) == sorted(lines)
    assert source.read.number == len(training) and source.read.sample == training


def test_files_folders_and_packed_files_give_the_same_texts(source, file, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    content = file.read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    (folder / "1.txt").write_bytes(content[:half])
    with gzip.open(folder / "2.txt.gz", "wb") as packed:
        packed.write(content[half:])
    (folder / "notes.md").write_text("no text")
    other = TextStream((str(folder),), 0.1, 0.1)
    assert list(other.texts()) == list(source.texts()) and other.read == source.read


def test_texts_that_differ_in_marks_alone_are_held_out_once(file):
    content = file.read_text()
    expected = TextStream((str(file),), 0.1, 0.1)
    lines = content.upper().replace("\n\n", " !\n").splitlines()
    repeated = file.with_name("repeated.txt")
    repeated.write_text("\n".join([*content.splitlines(), *lines]))
    found = TextStream((str(repeated),), 0.1, 0.1)
    for split in ("validation", "test"):
        assert found.held_out(split) == expected.held_out(split)
        assert len(found.read.held_out[split]) == 2 * len(expected.held_out(split))


def test_lines_are_read_as_whole_files_are(tmp_path):
    content = b"\xef\xbb\xbfone\n\xc3\xbcber\n"
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    for name in ("a.txt", "a.txt.gz"):
        assert "".join(read_lines(tmp_path / name)) == read_text(tmp_path / name) == "one\n\u00fcber\n"
    (tmp_path / "b.txt").write_bytes(b"one\n two \xfc\n")
    said = set()
    for read in (read_text, lambda path: list(read_lines(path))):
        with pytest.raises(DataError) as caught:
            read(tmp_path / "b.txt")
        said.add(str(caught.value))
    assert len(said) == 1 and "line 2" in said.pop()


def test_passages_hold_every_token_once(tokenizer):
    texts = ["good film", "the plot was bad " * 5, "a cast"]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    apart = ids(passages(texts, tokenizer, 8))
    assert all(len(row) <= 8 and row[0] == begin and row[-1] == end for row in apart)
    assert [token for row in apart for token in row[1:-1]] == [*chain(*tokens)]
    joined = ids(passages(texts, tokenizer, 8, join=True))
    assert all(len(row) == 8 for row in joined[:-1])
    assert [token for row in joined for token in row[1:-1]] == [*tokens[0], end, *tokens[1], end, *tokens[2]]


def test_texts_without_tokens_and_written_special_tokens_are_no_special_tokens(tokenizer):
    empty = ["good film", "\u200b", "", "bad plot"]
    for join in (False, True):
        expected = ids(passages(empty[::3], tokenizer, 8, join=join))
        assert ids(passages(empty, tokenizer, 8, join=join)) == expected
    special = streams.special_ids(tokenizer)
    (row,) = ids(passages(["good [MASK] film [SEP] [PAD]"], tokenizer, 20))
    assert not special & set(row[1:-1]) and len(row) > 7
    assert special == {tokenizer.pad_token_id, row[0], row[-1], tokenizer.mask_token_id}


def test_masks_are_a_function_of_the_tokens_and_no_special_one(tokenizer):
    special = streams.special_ids(tokenizer)
    rows = list(passages(["good film " * 5, "bad plot " * 5], tokenizer, 9, join=True))
    again = [with_masks(row, special, 0.3)["masked"] for row in rows]
    assert [with_masks(row, special, 0.3)["masked"] for row in rows] == again
    assert len({tuple(masked) for masked in again if len(masked) == 9}) > 1
    for row, masked in zip(rows, again, strict=True):
        counted = sum(token not in special for token in row["original_ids"])
        assert sum(masked) == math.ceil(0.3 * counted)
        assert not any(m for token, m in zip(row["original_ids"], masked, strict=True) if token in special)


@pytest.mark.parametrize("join", [False, True])
def test_the_number_of_passages_is_estimated_from_a_sample(source, tokenizer, monkeypatch, join):
    stream = PassageStream(source, tokenizer, 7, join=join, buffer=4, seed=0)
    rows = ids(stream)
    special = streams.special_ids(tokenizer)
    expected = [(len(row), sum(token not in special for token in row)) for row in rows]
    if not join:  # in whatever order, they are the same passages
        assert sorted(stream.counts) == sorted(expected)
    monkeypatch.setattr(streams, "SAMPLE", 9)
    few = PassageStream(
        TextStream(source.sources, source.validation, source.test), tokenizer, 7, join=join, buffer=4, seed=0
    )
    sample = few.texts.read.sample
    assert 9 <= len(sample) < 18
    every = -(-few.texts.read.number // len(sample))
    assert sample == list(few.texts.training())[::every]
    assert len(few.counts) < len(few) and len(few) == pytest.approx(len(rows), rel=0.3)


def test_the_order_is_a_function_of_seed_and_epoch(source, tokenizer):
    def stream(seed=0, buffer=16):
        return PassageStream(source, tokenizer, 12, join=False, buffer=buffer, seed=seed)

    first = stream()
    whole = ids(first)
    assert ids(first) == whole == ids(stream()) and len(first) == len(whole)
    assert sorted(whole) == sorted(ids(stream(1))) and whole != ids(stream(1))
    first.set_epoch(1)
    again = ids(first)
    assert again != whole and sorted(again) == sorted(whole)
    assert ids(stream(buffer=1)) == ids(passages(source.training(), tokenizer, 12))
    assert ids(islice(stream(), 3)) == whole[:3]  # read as asked for


def test_a_named_data_set_is_its_training_part(monkeypatch, tmp_path):
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            with gzip.open(folder / f"{part}.{language}.gz", "wt", encoding="utf-8") as packed:
                packed.write(f"{part} in {language}\n")
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    assert list(TextStream((MULTI30K,), 0.1, 0.1).texts()) == ["train in en"]
    assert {"imdb", "sst2", "cola", MULTI30K} <= set(NAMED)


def test_of_what_named_data_sets_left_to_train_on_some_is_held_out(tmp_path):
    """They were cut by their texts' hashes too."""
    left = [text for text in map(str, range(2000)) if split_of(text) == "train"]
    (tmp_path / "left.txt").write_text("\n".join(left))
    held = TextStream((str(tmp_path / "left.txt"),), 0.02, 0.02).read.held_out
    assert all(0.01 * len(left) < len(held[split]) < 0.03 * len(left) for split in ("validation", "test"))


@pytest.mark.parametrize("size", [9, 12, 24, 40])
def test_a_vocabulary_has_at_most_so_many_tokens(size):
    texts = ["aaaa bbb cc d", "a bad cab"]
    found = learned_tokenizer(lambda: texts, size)
    assert size - 1 <= len(found) <= size or len(found) == 23  # all there are
    assert found.tokenize("a aa") == ["a", "a", "##a"]  # the most frequent character is always there
    with pytest.raises(DataError, match="vocabulary: expected more than 6 tokens, of which 5 are special"):
        learned_tokenizer(lambda: texts, 6)


def test_a_vocabulary_is_a_function_of_the_texts():
    """Of many equally frequent pairs, which the tokenizers package alone joins in another order every time."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefgh", k=6)) for _ in range(60)]
    vocabularies = [learned_tokenizer(lambda: texts, 80).get_vocab() for _ in range(4)]
    assert all(each == vocabularies[0] for each in vocabularies)
    assert sorted(vocabularies[0].values()) == list(range(80))


def test_a_learned_vocabulary_reads_as_berts_does_and_comes_back(tokenizer, tmp_path):
    assert tokenizer.tokenize("Good FILM, the") == ["good", "film", "[UNK]", "the"]
    names = tokenizer.convert_ids_to_tokens(tokenizer("good", "film")["input_ids"])
    assert names == ["[CLS]", "good", "[SEP]", "film", "[SEP]"]
    tokenizer.save_pretrained(tmp_path)
    again = loaded_tokenizer(str(tmp_path))
    assert again.get_vocab() == tokenizer.get_vocab() and again.mask_token_id == tokenizer.mask_token_id
    cased = learned_tokenizer(lambda: ["Good good"] * 3, 40, lowercase=False)
    assert {"G", "g"} <= {token[0] for token in cased.get_vocab() if not token.startswith(("[", "#"))}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.txt", b"\n \n", "empty.txt: expected texts, got none"),
        ("one.txt", b"one text\n", "1 texts are too few, none is left for"),
        ("bad.txt", b"good\nf\xfcr\n", "bad.txt line 2: expected UTF-8 text, got the byte 0xfc"),
        ("damaged.txt.gz", b"\x1f\x8b\x08nothing", "expected a gzip file"),
        ("table.csv", b"text\n", "expected a file that ends in .txt or .txt.gz"),
    ],
)
def test_sources_that_are_no_texts_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        _ = TextStream((str(tmp_path / name),), 0.1, 0.1).read
    assert words in str(caught.value)


def test_missing_files_and_empty_folders_are_refused(tmp_path):
    for place, words in ((tmp_path / "none.txt", "no such file"), (tmp_path, "expected files that end in")):
        with pytest.raises(DataError, match=words):
            _ = TextStream((str(place),), 0.1, 0.1).read


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path):
    runs.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(RunError, match="expected a tokenizer with a mask_token, got one without"):
        loaded_tokenizer(str(tmp_path))
    with pytest.raises(RunError, match="cannot be read"):
        loaded_tokenizer(str(tmp_path / "none"))
    with pytest.raises(DataError, match="expected texts with characters"):
        learned_tokenizer(lambda: [" "], 20)
