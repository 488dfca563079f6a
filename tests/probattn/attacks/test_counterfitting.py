"""Counter-fitting against what one pass comes to by hand, and the file of vectors."""

import math

import pytest
import torch

from probattn.attacks import CounterFitting, counter_fit, make_vectors, read_vectors, vectors_file
from probattn.data import DataError
from probattn.tasks import RunError

WORDS = ["good", "fine", "bad"]
VECTORS = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 2.0]])
ONCE = CounterFitting(epochs=1, step=0.5, neighbours=0.0)
NORM = math.sqrt(1.16)


def close(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=1e-6)


@pytest.mark.cuda
def test_vectors_of_a_device():
    given = [("good", "fine")], [("fine", "bad")]
    found = counter_fit(WORDS, VECTORS.cuda(), *given).vectors
    assert torch.equal(found, counter_fit(WORDS, VECTORS, *given).vectors)


def test_a_pass_over_synonyms_by_hand():
    # cos 0.6: the first goes by half of w - 0.6 u = (0, 0.8), the second by half of u - 0.6 w = (0.64, -0.48).
    fitted = counter_fit(WORDS, VECTORS, [("good", "fine")], [], ONCE)
    close(fitted.vectors, [[1 / NORM, 0.4 / NORM], [0.92 / NORM, 0.56 / NORM], [0.0, 1.0]])
    assert fitted.before["synonyms"] == pytest.approx(0.6)
    assert fitted.after["synonyms"] == pytest.approx((0.92 + 0.4 * 0.56) / 1.16)
    assert math.isnan(fitted.before["antonyms"])


def test_a_pass_over_antonyms_goes_the_other_way():
    fitted = counter_fit(WORDS, VECTORS, [], [("good", "fine")], ONCE)
    close(fitted.vectors, [[1 / NORM, -0.4 / NORM], [0.28 / NORM, 1.04 / NORM], [0.0, 1.0]])


def test_a_word_of_several_pairs_moves_by_their_mean():
    fitted = counter_fit(WORDS, VECTORS, [("good", "fine"), ("fine", "bad")], [], ONCE)
    # Of "fine" (0.64, -0.48) towards "good" and (-0.48, 0.36) towards "bad".
    moved = torch.tensor([0.6 + 0.5 * 0.08, 0.8 - 0.5 * 0.06])
    close(fitted.vectors[1], (moved / moved.norm()).tolist())


def test_terms_that_are_satisfied_move_nothing():
    options = CounterFitting(epochs=5, antonyms=0.3, synonyms=0.5, neighbours=0.0)
    fitted = counter_fit(WORDS, VECTORS, [("good", "fine")], [("fine", "bad"), ("good", "bad")], options)
    close(fitted.vectors[0], [1.0, 0.0])  # d 0.4 < 0.5, d 1 > 0.3
    assert fitted.after["antonyms"] < fitted.before["antonyms"]  # good - bad stays, fine - bad parts


def test_neighbours_follow_a_word_that_moves():
    words, vectors = ["a", "b", "c"], torch.tensor([[1.0, 0.0], [0.99, 0.141], [0.0, 1.0]])
    pairs = [("a", "c")]
    alone = counter_fit(words, vectors, [], pairs, CounterFitting(antonyms=2.0, neighbours=0.0))
    held = counter_fit(words, vectors, [], pairs, CounterFitting(antonyms=2.0, neighbours=0.1))
    assert held.pairs["neighbours"] == 1
    assert alone.vectors[0] @ alone.vectors[1] < held.vectors[0] @ held.vectors[1]


def test_pairs_in_both_lists_are_antonyms_and_unknown_words_are_passed_over():
    pairs = [("good", "bad"), ("bad", "good"), ("good", "unknown"), ("fine", "fine")]
    fitted = counter_fit(WORDS, VECTORS, pairs, pairs[:1], CounterFitting(neighbours=2.0))
    assert fitted.pairs == {"synonyms": 0, "antonyms": 1, "neighbours": 2}


def test_many_words_are_seen_in_pieces(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    words, vectors = [f"w{n}" for n in range(50)], torch.randn(50, 4, generator=generator)
    pairs = (
        [(f"w{n}", f"w{n + 1}") for n in range(0, 48, 2)],
        [(f"w{n}", f"w{n + 2}") for n in range(0, 40, 3)],
    )
    whole = counter_fit(words, vectors, *pairs)
    monkeypatch.setattr("probattn.attacks.vectors.CHUNK", 3)
    pieces = counter_fit(words, vectors, *pairs)
    assert whole.pairs == pieces.pairs
    torch.testing.assert_close(whole.vectors, pieces.vectors, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vectors", [VECTORS[:2], VECTORS * torch.tensor([[0.0], [1.0], [1.0]])])
def test_vectors_that_do_not_fit_are_refused(vectors):
    with pytest.raises(ValueError, match="counter_fit: expected"):
        counter_fit(WORDS, vectors, [], [])


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """The folder of public data with two synonyms and two antonyms."""
    folder = tmp_path / "data" / "attack"
    folder.mkdir(parents=True)
    (folder / "ppdb_synonyms.txt").write_text("good fine\n")
    (folder / "ppdb_antonyms.txt").write_text("en_good en_bad\n\n")
    (folder / "wordnet_antonyms.txt").write_text("fine bad\n")
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path / "data"))
    return folder


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("good 1 0\n, 5 5\nfine 0.6 0.8\nbad 0 2\n2nd 1 1\nrare 1 1\n")
    return file


def test_a_file_of_vectors_is_made_and_read_back(lists, source, tmp_path):
    file, fitted = make_vectors(tmp_path / "new" / "fitted.txt", source, most=3)
    words, vectors = read_vectors(file)
    assert words == WORDS
    torch.testing.assert_close(vectors, fitted.vectors, atol=1e-4, rtol=0)
    assert fitted.pairs["synonyms"] == 1 and fitted.pairs["antonyms"] == 2


def test_the_usual_place_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert vectors_file().is_relative_to(tmp_path)
    with pytest.raises(RunError, match=r"found no such file; make it: probattn attack-vectors --output"):
        read_vectors()


def test_what_is_no_list_or_no_vectors_is_refused(lists, source, tmp_path, monkeypatch):
    (lists / "ppdb_synonyms.txt").write_text("good fine\ngood fine well\n")
    with pytest.raises(DataError, match=r"ppdb_synonyms.txt line 2: expected two words, got 3"):
        make_vectors(tmp_path / "fitted.txt", source)
    source.write_text("1 2\n")
    (lists / "ppdb_synonyms.txt").write_text("good fine\n")
    with pytest.raises(DataError, match="expected vectors of words"):
        make_vectors(tmp_path / "fitted.txt", source)
    monkeypatch.delenv("PROBATTN_DATA")
    with pytest.raises(DataError, match="PROBATTN_DATA"):
        make_vectors(tmp_path / "fitted.txt", source)


@pytest.mark.vectors
@pytest.mark.slow
def test_real_antonyms_part_and_synonyms_come_together(tmp_path, public_data):
    public_data("attack")
    file, fitted = make_vectors(tmp_path / "fitted.txt", most=8000)
    assert fitted.after["antonyms"] < 0.2 < fitted.before["antonyms"]
    assert fitted.after["synonyms"] > fitted.before["synonyms"] + 0.2
    words, vectors = read_vectors(file)
    place = words.index

    def cosine(a, b):
        return float(vectors[place(a)] @ vectors[place(b)])

    assert cosine("good", "bad") < 0.3
    assert cosine("movie", "film") > cosine("movie", "theater")
