"""IBM Model 1 against nltk, against loops over words, and on Multi30k."""

import random
import time
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from probattn.data import DataError
from probattn.probes import NULL, IBMModel1, ParallelCorpus, ibm_model1, read_parallel

SOURCE = [
    "the house is small", "the book", "a house", "the big big dog sees a dog", "dog", "is the book small",
]  # fmt: skip
TARGET = [
    "das haus ist klein", "das buch", "ein haus", "der grosse grosse hund sieht den hund", "hund hund",
    "ist das buch klein",
]  # fmt: skip
PAIRS = [each.split() for each in SOURCE], [each.split() for each in TARGET]


@pytest.fixture
def corpus():
    return ParallelCorpus.from_words(*PAIRS)


def entry(model, matrix, source, target):
    row = len(model.source_vocabulary) if source == NULL else model.source_vocabulary.numbers[source]
    return matrix[row, model.target_vocabulary.numbers[target]]


def by_loops(steps, null):
    """Expectation-maximisation written out over positions."""
    table = defaultdict(lambda: 1.0)
    for _ in range(steps):
        counts = defaultdict(float)
        for source, target in zip(*PAIRS, strict=True):
            words = [*source, NULL] if null else source
            for o in target:
                total = sum(table[i, o] for i in words)
                for i in words:
                    counts[i, o] += table[i, o] / total
        totals = defaultdict(float)
        for (i, _), value in counts.items():
            totals[i] += value
        table = defaultdict(float, {(i, o): value / totals[i] for (i, o), value in counts.items()})
    return counts, table


@pytest.mark.parametrize("null", [False, True], ids=["plain", "null"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_it_is_what_loops_over_words_find(corpus, steps, null):
    model = IBMModel1.fit(corpus, steps, null=null)
    counts, table = by_loops(steps, null)
    assert model.counts.nnz == len(counts)
    for (i, o), value in counts.items():
        assert entry(model, model.counts, i, o) == pytest.approx(value, rel=1e-12)
        assert entry(model, model.table, i, o) == pytest.approx(table[i, o], rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_it_is_that_of_nltk(steps):
    translate = pytest.importorskip("nltk.translate", reason="needs nltk")
    # nltk counts a target word that a sentence repeats once only, which Eq. 16 does not: none is repeated here.
    target = [list(dict.fromkeys(each)) for each in PAIRS[1]]
    # It translates from what it calls mots to words, and always puts None among the mots.
    pairs = [translate.AlignedSent(words, mots) for mots, words in zip(PAIRS[0], target, strict=True)]
    oracle = translate.IBMModel1(pairs, steps).translation_table
    corpus = ParallelCorpus.from_words(PAIRS[0], target)
    model = IBMModel1.fit(corpus, steps, null=True)
    met = {(i, o) for pair in pairs for i in (*pair.mots, None) for o in pair.words}
    assert len(met) == model.table.nnz
    for source, o in met:
        found = entry(model, model.table, NULL if source is None else source, o)
        expected = pytest.approx(oracle[o][source], rel=1e-9, abs=2e-12)
        assert found == expected


def test_the_counts_are_those_of_equation_16(corpus):
    counts = defaultdict(float)
    for source, target in zip(*PAIRS, strict=True):
        for i in source:
            for o in target:
                counts[i, o] += 1 / len(source)
    model = IBMModel1.fit(corpus)
    for i in model.source_vocabulary.words:
        for o in model.target_vocabulary.words:
            assert entry(model, model.counts, i, o) == pytest.approx(counts[i, o], abs=1e-15)


@pytest.mark.parametrize("null", [False, True], ids=["plain", "null"])
def test_probe_and_attention_are_equations_18_and_19(corpus, null):
    model = IBMModel1.fit(corpus, 3, null=null)
    _, table = by_loops(3, null)
    words = ["the", "dog", "dog", "is"], ["der", "hund", "ist"]
    ids = corpus.source_vocabulary.encode(words[0]), corpus.target_vocabulary.encode(words[1])
    probe = torch.tensor([[table[i, o] for i in words[0]] for o in words[1]], dtype=torch.float64)
    torch.testing.assert_close(model.probe(*ids), probe)
    of_null = torch.tensor([[table[NULL, o] if null else 0] for o in words[1]], dtype=torch.float64)
    torch.testing.assert_close(model.attention(*ids), probe / (probe.sum(1, keepdim=True) + of_null))


def test_batches_are_padded_and_masked(corpus):
    model = IBMModel1.fit(corpus, 2)
    source, target = torch.tensor([[0, 1, 2], [3, 4, -1]]), torch.tensor([[1, 99], [0, 2]])
    probe = model.probe(source, target)
    assert probe.shape == (2, 2, 3)
    torch.testing.assert_close(probe[1], model.probe(source[1], target[1]))
    assert (probe[1, :, 2] == 0).all() and (probe[0, 1] == 0).all()
    assert (model.attention(source, target)[0, 1] == 0).all()  # no source word translates to an unknown word
    mask = torch.tensor([[True, False, True], [True, True, False]])
    masked = model.attention(source, target, mask)
    assert (masked[0, :, 1] == 0).all()
    torch.testing.assert_close(masked[0, 0].sum(), torch.tensor(1.0, dtype=torch.float64))
    assert model.probe(torch.empty(0, dtype=torch.long), target[0]).shape == (2, 0)


@pytest.mark.parametrize("null", [False, True], ids=["plain", "null"])
def test_the_likelihood_rises_with_every_step(corpus, null):
    found = [IBMModel1.fit(corpus, steps, null=null).log_likelihood(corpus) for steps in range(1, 12)]
    assert all(after > before for before, after in pairwise(found))
    _, table = by_loops(3, null)
    expected = sum(
        np.log(np.mean([table[i, o] for i in ([*source, NULL] if null else source)]))
        for source, target in zip(*PAIRS, strict=True)
        for o in target
    )
    assert found[2] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_words_may_be_integers_of_any_type(corpus, null, dtype):
    model = IBMModel1.fit(corpus, null=null)
    source, target = torch.arange(3), torch.arange(len(model.target_vocabulary))
    found = model.attention(source.to(dtype), target.to(dtype))
    torch.testing.assert_close(found, model.attention(source, target))


def test_a_pair_that_cannot_be_has_no_likelihood(corpus):
    model = IBMModel1.fit(corpus)
    strange = ParallelCorpus(
        corpus.source[4:5], corpus.target[1:2], corpus.source_vocabulary, corpus.target_vocabulary
    )  # "dog" never met "das buch"
    assert model.log_likelihood(strange) == -np.inf
    with pytest.raises(ValueError, match="expected the corpus that the model was fitted to"):
        model.improve(strange)


def test_steps_may_be_taken_later(corpus):
    whole, parts = IBMModel1.fit(corpus, 5), IBMModel1.fit(corpus, 2).improve(corpus, 3)
    assert parts.steps == 5
    np.testing.assert_array_equal(whole.counts.toarray(), parts.counts.toarray())


def test_pairs_of_words_are_taken_a_few_at_a_time(corpus, monkeypatch):
    whole = IBMModel1.fit(corpus, 4)
    monkeypatch.setattr(ibm_model1, "_PAIRS", 7)
    np.testing.assert_allclose(IBMModel1.fit(corpus, 4).counts.toarray(), whole.counts.toarray(), rtol=1e-14)


def test_a_permuted_dictionary_is_found():
    chooser = random.Random(0)
    source = [chooser.sample(range(50), chooser.randint(1, 8)) for _ in range(600)]
    translation = chooser.sample(range(50), 50)
    target = [[translation[i] for i in chooser.sample(each, len(each))] for each in source]
    corpus = ParallelCorpus.from_words(
        *([[str(i) for i in each] for each in side] for side in (source, target))
    )
    model = IBMModel1.fit(corpus, 10)
    for word in range(50):
        assert model.translations(str(word), most=1)[0][0] == str(translation[word])


def test_permutations_of_all_words_teach_nothing():
    words = list("abcdef")
    chooser = random.Random(0)
    sentences = [chooser.sample(words, 6) for _ in range(20)]
    model = IBMModel1.fit(ParallelCorpus.from_words(sentences, sentences), 5)
    np.testing.assert_allclose(model.table.toarray(), 1 / 6)


def test_translations_are_sorted(corpus):
    model = IBMModel1.fit(corpus, 5, null=True)
    found = model.translations("dog", most=3)
    assert found[0][0] == "hund" and len(found) == 3
    assert [share for _, share in found] == sorted((share for _, share in found), reverse=True)
    assert sum(share for _, share in model.translations(NULL, most=100)) == pytest.approx(1)
    with pytest.raises(KeyError, match="'cat' is not among the"):
        model.translations("cat")


@pytest.mark.parametrize("null", [False, True], ids=["plain", "null"])
def test_a_saved_model_is_the_same(corpus, tmp_path, null):
    model = IBMModel1.fit(corpus, 3, null=null)
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")
    found = IBMModel1.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(found.counts.toarray(), model.counts.toarray())
    expected = (model.source_vocabulary, model.target_vocabulary)
    assert (found.source_vocabulary, found.target_vocabulary) == expected
    assert (found.steps, found.null) == (3, null)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    assert found.log_likelihood(corpus) == model.log_likelihood(corpus)


def damage(path, how):
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    elif how == "text":
        path.write_text("no model at all")
    elif how == "other":
        save_file({"data": np.ones(3)}, path)
    elif how == "indices":
        arrays = load_file(path)
        arrays["indices"] = arrays["indices"] + 1000
        rewrite(path, arrays)
    elif how == "missing part":
        arrays = load_file(path)
        del arrays["indptr"]
        rewrite(path, arrays)


def rewrite(path, arrays):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    save_file(arrays, path, metadata=header)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "damaged"),
        ("text", "damaged"),
        ("other", "expected a file that IBMModel1.save wrote"),
        ("indices", "damaged"),
        ("missing part", "damaged"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(corpus, tmp_path, how, words):
    path = tmp_path / "model"
    IBMModel1.fit(corpus).save(path)
    damage(path, how)
    with pytest.raises(DataError, match=words) as caught:
        IBMModel1.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_no_file_is_refused(tmp_path, corpus):
    with pytest.raises(DataError, match="got no file"):
        IBMModel1.load(tmp_path / "model")
    with pytest.raises(DataError, match="got a folder"):
        IBMModel1.load(tmp_path)
    with pytest.raises(OSError, match="missing"):
        IBMModel1.fit(corpus).save(tmp_path / "missing" / "model")


def test_wrong_calls_are_named(corpus):
    model = IBMModel1.fit(corpus)
    with pytest.raises(ValueError, match=r"steps: expected an integer >= 1, got 0"):
        IBMModel1.fit(corpus, 0)
    with pytest.raises(ValueError, match=r"improve.steps: expected an integer >= 0, got -1"):
        model.improve(corpus, -1)
    message = r"corpus: expected a ParallelCorpus; from_words .* got <class 'list'>"
    with pytest.raises(TypeError, match=message):
        IBMModel1.fit([["the"]])
    with pytest.raises(ValueError, match=r"most: expected an integer >= 1, got -2"):
        model.translations("the", -2)
    with pytest.raises(TypeError, match="integer source words"):
        model.probe(torch.zeros(3), torch.zeros(3).long())
    other = ParallelCorpus.from_words([["the"]], [["das"]])
    words = "the model's 9 source words in their order, got another vocabulary of 1"
    with pytest.raises(ValueError, match=words):
        model.improve(other)


@pytest.mark.slow
def test_five_steps_on_multi30k(public_data):
    folder = public_data("multi30k") / "multi30k"
    begin = time.perf_counter()
    corpus = ParallelCorpus.from_words(*read_parallel(folder / "train.en.gz", folder / "train.de.gz"))
    model = IBMModel1.fit(corpus, 5)
    assert time.perf_counter() - begin < 60
    assert len(corpus) == 29_000
    np.testing.assert_allclose(
        model.counts.sum(), corpus.target.sum(), rtol=1e-9
    )  # every word comes from somewhere
    for word, expected in (("dog", "hund"), ("man", "mann"), ("water", "wasser"), ("woman", "frau")):
        assert model.translations(word, most=1)[0][0] == expected
