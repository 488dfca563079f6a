"""Beam search against a greedy search and an exhaustive one by hand; a copy task that is learned."""

import itertools
import random
from functools import cache

import pytest
import torch

import probattn
from probattn.data import PairCollate
from probattn.inference import OptimizerOptions, SchedulerOptions, SVIDriver
from probattn.models import SearchOptions, TransformerSize, Translator, build_transformer, convert, translate

WORDS = 12


class Letters:
    """Letters as tokens 4 to 11."""

    def encode(self, text):
        return [4 + "abcdefgh".index(letter) for letter in text]

    def decode(self, tokens):
        return "".join("abcdefgh"[token - 4] for token in tokens)


def model(*methods, seed=0, layers=1):
    size = TransformerSize(width=16, layers=layers, heads=2, feed_forward=32, dropout=0.0, max_positions=24)
    net = build_transformer(size, WORDS, seed=seed)
    torch.manual_seed(seed)
    return Translator(convert(net, *methods) if methods else net).eval()


def log_probabilities(translator, source, words):
    """Of the next token after ``words``; padding and begin are none."""
    inputs = {"input_ids": torch.tensor([[*source, 3]]), "decoder_input_ids": torch.tensor([[2, *words]])}
    with torch.no_grad():
        found = translator(inputs)[0, -1].log_softmax(-1)
    found[[0, 2]] = -torch.inf
    return found.tolist()


@pytest.mark.parametrize("method", [None, probattn.BayesianAttention(rho=1.0, sigma=0.5)])
def test_a_beam_of_one_is_greedy_search(method):
    translator = model(*([method] if method else []))
    sources = ["abc", "hgfedcba", "d"]
    options = SearchOptions(num_beams=1, extra_length=4, batch_size=1)
    for source, found in zip(sources, translate(translator, sources, Letters(), options), strict=True):
        tokens, words = Letters().encode(source), []
        for _ in range(len(tokens) + 1 + 4):
            following = log_probabilities(translator, tokens, words)
            word = following.index(max(following))
            if word == 3:
                break
            words.append(word)
        assert found == Letters().decode([word for word in words if word > 3])


@pytest.mark.parametrize(("seed", "penalty"), [(0, 0.0), (1, 0.6), (2, 0.6), (3, 3.0)])
def test_a_beam_of_all_finds_the_best_of_all(seed, penalty):
    """At most three tokens: a sentence of up to two and its end, or three where the limit cuts it off."""
    translator, source = model(seed=seed), Letters().encode("ab")
    following = cache(lambda words: log_probabilities(translator, source, words))
    scores = {}
    for length in range(4):
        for words in itertools.product([1, *range(4, WORDS)], repeat=length):
            tokens = [*words, 3][:3]
            total = sum(following(words[:place])[word] for place, word in enumerate(tokens))
            scores[words] = total / len(tokens) ** penalty
    best = max(scores, key=scores.__getitem__)
    translator.net.config.max_position_embeddings = 4
    options = SearchOptions(
        num_beams=128, length_penalty=penalty, extra_length=1
    )  # as many as there are beginnings
    found = translate(translator, ["ab"], Letters(), options)
    assert found == [Letters().decode([word for word in best if word > 3])]


def test_company_changes_no_translation():
    translator = model(probattn.BayesianAttention(), seed=1)
    sources = ["abcdefgh", "", "a", "hhh", "ab", "gfedc"]
    options = [SearchOptions(num_beams=3, batch_size=size, extra_length=12) for size in (1, 4)]
    alone, together = (translate(translator, sources, Letters(), each) for each in options)
    short = [row for row, source in enumerate(sources) if len(together[row]) < len(source) + 12]
    assert alone[1] == together[1] == ""
    assert [alone[row] for row in short] == [together[row] for row in short]
    assert together == translate(translator, sources, Letters(), options[1])


def test_the_mode_is_left_as_it_was():
    translator = model().train()
    translator.net.model.encoder.eval()
    before = [part.training for part in translator.modules()]
    translate(translator, ["ab"], Letters(), SearchOptions(num_beams=2))
    assert [part.training for part in translator.modules()] == before
    assert any(before) and not all(before)


def test_a_source_beyond_the_positions_and_a_network_without_search_are_refused():
    with pytest.raises(ValueError, match="has 26 tokens with its end, more than the network's 24"):
        translate(model(), ["a" * 25], Letters())
    with pytest.raises(ValueError, match="Linear has no generate"):
        translate(Translator(torch.nn.Linear(1, 1)), ["a"], Letters())


@pytest.mark.parametrize("name", ["num_beams", "extra_length", "batch_size"])
def test_options_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: expected an integer >= 1, got 0"):
        SearchOptions(**{name: 0})
    with pytest.raises(ValueError, match=f"{name}: expected an integer >= 1, got 1.5"):
        SearchOptions(**{name: 1.5})


@pytest.mark.parametrize("penalty", [float("nan"), float("-inf"), "1"])
def test_a_length_penalty_that_is_no_number_is_refused(penalty):
    with pytest.raises(ValueError, match=rf"length_penalty: expected a (finite )?number, got {penalty!r}"):
        SearchOptions(length_penalty=penalty)


def test_one_sentence_in_place_of_several_is_refused():
    with pytest.raises(
        TypeError, match="expected a list of sentences, got the sentence 'ab'; put it in a list"
    ):
        translate(model(), "ab", Letters())


class Rows:
    """Random words and themselves."""

    def __init__(self, number, seed):
        draw = random.Random(seed)
        self.words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 5))) for _ in range(number)]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, row):
        tokens = [*Letters().encode(self.words[row]), 3]
        return {"input_ids": tokens, "labels": tokens}

    def lengths(self):
        return [len(word) for word in self.words]


@pytest.mark.slow
def test_copying_is_learned():
    size = TransformerSize(width=32, layers=1, heads=2, feed_forward=64, dropout=0.0, max_positions=24)
    net = convert(build_transformer(size, WORDS), probattn.BayesianAttention())
    rows = Rows(2000, 0)
    model = Translator(net, label_smoothing=0.1, mean_length=4.0)
    driver = SVIDriver(
        model,
        optimizer=OptimizerOptions("Adam", 5e-3, 5e-3, arguments={"betas": (0.9, 0.98)}),
        scheduler=SchedulerOptions("inverse_sqrt", warmup_steps=60),
        batch_size=64,
        collate=PairCollate(),
        length_pool=8,
        progress=False,
        cpu=True,
    )
    driver.fit(rows, steps=300)
    unseen = [word for word in Rows(120, 1).words if word not in set(rows.words)]
    assert len(unseen) > 30
    found = translate(model, unseen, Letters(), SearchOptions(num_beams=2))
    right = sum(a == b for a, b in zip(found, unseen, strict=True))
    assert right / len(unseen) > 0.9, right / len(unseen)
