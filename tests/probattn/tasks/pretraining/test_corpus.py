"""Corpora as streams: what is read, held out, cut and shuffled, and what is refused."""

from __future__ import annotations

import gzip
import random
from itertools import chain, islice

import pytest
import runs

from probattn.data import DataError
from probattn.tasks.errors import RunError
from probattn.tasks.pretraining.corpus import MULTI30K, NAMED, Corpus, PassageStream, passages
from probattn.tasks.pretraining.vocabulary import learned_tokenizer, loaded_tokenizer


@pytest.fixture
def file(tmp_path):
    runs.write_corpus(tmp_path)
    return tmp_path / "corpus.txt"


@pytest.fixture
def corpus(file):
    return Corpus((str(file),), 0.1, 0.1)


@pytest.fixture(scope="module")
def tokenizer():
    return learned_tokenizer(lambda: [*runs.WORDS, *map(str, range(10))] * 3, 80)


def ids(rows):
    return [row["original_ids"] for row in rows]


def test_every_text_is_in_one_part(corpus, file):
    lines = [line for line in file.read_text().split("\n") if line]
    training = list(corpus.training())
    held = [corpus.held_out(split) for split in ("validation", "test")]
    assert all(held) and sorted([*training, *held[0], *held[1]]) == sorted(lines)
    assert corpus.read[1] == len(training)
    assert corpus.held_out("test", 2) == held[1][:2]


def test_files_folders_and_packed_files_give_the_same_texts(corpus, file, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    content = file.read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    (folder / "1.txt").write_bytes(content[:half])
    with gzip.open(folder / "2.txt.gz", "wb") as packed:
        packed.write(content[half:])
    (folder / "notes.md").write_text("no text")
    other = Corpus((str(folder),), 0.1, 0.1)
    assert list(other.texts()) == list(corpus.texts()) and other.read == corpus.read


def test_passages_hold_every_token_once(tokenizer):
    texts = ["good film", "the plot was bad " * 5, "a cast"]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    apart = ids(passages(texts, tokenizer, 8))
    assert all(len(row) <= 8 and row[0] == begin and row[-1] == end for row in apart)
    assert [token for row in apart for token in row[1:-1]] == [*chain(*tokens)]
    joined = ids(passages(texts, tokenizer, 8, join=True))
    assert all(len(row) == 8 for row in joined[:-1])
    assert [token for row in joined for token in row[1:-1]] == [
        *tokens[0],
        end,
        *tokens[1],
        end,
        *tokens[2],
    ]


def test_the_order_is_a_function_of_seed_and_epoch(corpus, tokenizer):
    def stream(seed=0, buffer=16):
        return PassageStream(corpus, tokenizer, 12, join=False, buffer=buffer, seed=seed)

    first = stream()
    whole = ids(first)
    assert ids(first) == whole == ids(stream()) and len(first) == len(whole)
    assert sorted(whole) == sorted(ids(stream(1))) and whole != ids(stream(1))
    first.set_epoch(1)
    again = ids(first)
    assert again != whole and sorted(again) == sorted(whole)
    assert ids(stream(buffer=1)) == ids(passages(corpus.training(), tokenizer, 12))
    assert ids(islice(stream(), 3)) == whole[:3]  # read as asked for


def test_a_named_data_set_is_its_training_part(monkeypatch, tmp_path):
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            with gzip.open(folder / f"{part}.{language}.gz", "wt", encoding="utf-8") as packed:
                packed.write(f"{part} in {language}\n")
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    assert list(Corpus((MULTI30K,), 0.1, 0.1).texts()) == ["train in en"]
    assert {"imdb", "sst2", "cola", MULTI30K} <= set(NAMED) and "cola_out_of_domain" not in NAMED


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
        _ = Corpus((str(tmp_path / name),), 0.1, 0.1).read
    assert words in str(caught.value)


def test_missing_files_and_empty_folders_are_refused(tmp_path):
    for place, words in ((tmp_path / "none.txt", "no such file"), (tmp_path, "expected files that end in")):
        with pytest.raises(DataError, match=words):
            _ = Corpus((str(place),), 0.1, 0.1).read


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path):
    runs.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(RunError, match="expected a tokenizer with a mask_token, got one without"):
        loaded_tokenizer(str(tmp_path))
    with pytest.raises(RunError, match="cannot be read"):
        loaded_tokenizer(str(tmp_path / "none"))
    with pytest.raises(DataError, match="expected texts with letters or signs"):
        learned_tokenizer(lambda: [" "], 20)
