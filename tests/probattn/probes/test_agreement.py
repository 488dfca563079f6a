"""Agreement of ratings: its definition in plain Python, SciPy's rank correlation, and values of the paper."""

from fractions import Fraction
from importlib import import_module
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from probattn.probes import (
    EvaluatedStep,
    agreement,
    contextualized_agreement,
    kendall_tau,
    mean_agreement,
    random_agreement,
)


def seeded(number):
    return torch.Generator().manual_seed(number)


def by_definition(u, v, top=Fraction(5, 100)):
    """Eq. 10 for two lists, word by word."""
    best = max(range(len(u)), key=lambda place: (u[place], -place))
    return float(sum(each > v[best] for each in v) < top * len(v))


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_it_is_the_definition_at_every_length(ties):
    outcomes = []
    for length in range(1, 201):
        u, v = torch.randn(2, 30, length, generator=seeded(length))
        if ties:
            u, v = u.mul(2).round(), v.mul(2).round()
        v = v + (2 if length % 2 else 1) * u  # so that both outcomes are frequent
        expected = [by_definition(*pair) for pair in zip(u.tolist(), v.tolist(), strict=True)]
        assert agreement(u, v).tolist() == expected, length
        outcomes += expected
    assert 0.2 < np.mean(outcomes) < 0.9


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 200),
    levels=st.integers(2, 400),
    top=st.sampled_from(["0.05", "0.1", "0.29", "0.57", "1.0"]),
    seed=st.integers(0, 10_000),
)
def test_masked_positions_do_not_exist(length, levels, top, seed):
    u, v = torch.randint(levels, (2, 4, length), generator=seeded(seed)).float()
    mask = torch.rand(4, length, generator=seeded(seed + 1)) < 0.7
    mask[0] = True
    mask[1] = False
    found = agreement(u, v, float(top), mask)
    for row in range(4):
        kept = [each[row][mask[row]].tolist() for each in (u, v)]
        if not kept[0]:
            assert found[row].isnan()
        else:
            assert found[row].item() == by_definition(*kept, Fraction(top))


def test_a_share_that_is_a_whole_number_is_one():
    assert 0.07 * 100 > 7  # what a product of floats would compare with
    u, v = torch.zeros(100), torch.arange(100.0)
    u[100 - 8] = 1  # seven positions are higher
    assert agreement(u, v, 0.07) == 0
    assert agreement(u.roll(1), v, 0.07) == 1


def test_ties_are_taken_as_the_page_says():
    constant, rising = torch.ones(40), torch.arange(40.0)
    assert agreement(constant, rising) == 0  # the first of the maxima, which is the lowest
    assert agreement(constant, -rising) == 1
    assert agreement(rising, constant) == 1


def test_infinite_ratings_are_ratings():
    v = torch.tensor([-torch.inf, 0.0, -1.0])
    assert agreement(torch.tensor([-torch.inf, -2.0, -3.0]), v) == 1
    assert agreement(torch.tensor([0.0, -torch.inf, -3.0]), v) == 0
    assert agreement(torch.full((3,), -torch.inf), v, mask=torch.tensor([False, True, True])) == 1


def test_leading_dimensions_broadcast():
    u, v = torch.rand(2, 3, 5, generator=seeded(0)), torch.rand(5, generator=seeded(1))
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]]).unsqueeze(1)
    torch.testing.assert_close(
        agreement(u, v, mask=mask), agreement(u, v.expand(2, 3, 5), mask=mask.expand(2, 3, 5))
    )
    assert agreement(torch.empty(2, 3, 0), torch.empty(2, 3, 0)).isnan().all()


def test_the_mean_is_over_words_that_count():
    u, v = torch.rand(2, 2, 3, 20, generator=seeded(2))
    query_mask = torch.tensor([[True, True, False], [True, False, False]])
    expected = agreement(u, v)[query_mask].mean()
    torch.testing.assert_close(mean_agreement(u, v, query_mask=query_mask), expected)
    no_positions = torch.ones(2, 1, 20, dtype=torch.bool)
    no_positions[1] = False
    torch.testing.assert_close(mean_agreement(u, v, mask=no_positions), agreement(u[0], v[0]).mean())


@pytest.mark.parametrize("length", [1, 2, 5, 7])
@pytest.mark.parametrize("top", [0.05, 0.3, 0.5])
def test_the_baseline_is_the_mean_over_all_orders(length, top):
    orders = torch.tensor(list(permutations(range(length)))).float()
    exact = agreement(torch.arange(float(length)), orders, top).mean()
    torch.testing.assert_close(random_agreement(torch.tensor([length]), top), exact.view(1))


def test_the_baseline_is_the_mean_over_random_orders():
    draws = 20_000
    for length in (20, 21, 60, 97):
        u, v = torch.rand(2, draws, length, generator=seeded(length))
        expected = random_agreement(torch.tensor(length)).item()
        error = (expected * (1 - expected) / draws) ** 0.5
        assert abs(agreement(u, v).mean().item() - expected) < 4 * error


def test_the_baseline_of_a_batch():
    lengths = torch.tensor([[14, 0], [200, 140]])
    torch.testing.assert_close(
        random_agreement(lengths), torch.tensor([[1 / 14, torch.nan], [10 / 200, 7 / 140]]), equal_nan=True
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: agreement(torch.rand(3), torch.rand(4)), ValueError, "the same L positions, got"),
        (lambda: agreement(torch.rand(2, 3), torch.rand(5, 3)), ValueError, "whose rows fit"),
        (
            lambda: agreement(torch.arange(3), torch.rand(3)),
            TypeError,
            "floating-point ratings, got torch.int64",
        ),
        (lambda: agreement(torch.rand(3), torch.rand(3), 0.0), ValueError, r"top in \(0, 1\], got 0.0"),
        (lambda: agreement(torch.rand(3), torch.rand(3), mask=torch.ones(3)), TypeError, "a bool mask"),
        (
            lambda: agreement(torch.rand(3), torch.rand(3), mask=torch.ones(2, dtype=torch.bool)),
            ValueError,
            r"a mask that fits \[3\], got one of shape \[2\]",
        ),
        (lambda: agreement(torch.rand(3), torch.tensor([0, torch.nan, 0])), ValueError, "NaN in the second"),
        (lambda: random_agreement(torch.tensor([-1])), ValueError, "lengths >= 0, got -1"),
        (lambda: random_agreement(torch.tensor([1.0])), TypeError, "integer lengths"),
        (
            lambda: random_agreement(14),
            TypeError,
            "lengths: expected a tensor of integers, got <class 'int'>",
        ),
    ],
)
def test_wrong_inputs_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_nan_may_stand_where_nothing_counts():
    v = torch.tensor([torch.nan, 1.0, 2.0])
    assert agreement(torch.tensor([9.0, 1.0, 2.0]), v, mask=torch.tensor([False, True, True])) == 1


@settings(deadline=None, max_examples=60)
@given(length=st.integers(2, 60), levels=st.integers(2, 100), seed=st.integers(0, 10_000))
def test_it_is_that_of_scipy(length, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randint(levels, (2, 5, length), generator=generator).float()
    mask = torch.rand(5, length, generator=generator) < 0.8
    found = kendall_tau(u, v, mask)
    for row in range(5):
        kept = [each[row][mask[row]].numpy() for each in (u, v)]
        if len(kept[0]) < 2 or any(len(np.unique(each)) < 2 for each in kept):
            assert found[row].isnan()
        else:
            assert found[row].item() == pytest.approx(kendalltau(*kept).statistic, abs=1e-12)


def test_rows_are_taken_a_few_at_a_time(monkeypatch):
    u, v = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))
    whole = kendall_tau(u, v)
    monkeypatch.setattr(import_module("probattn.probes.agreement"), "_PAIRS", 9 * 9 * 2)
    torch.testing.assert_close(kendall_tau(u, v), whole)
    assert whole.shape == (3, 7)


def test_infinite_ratings_are_ranked():
    u = torch.tensor([-torch.inf, -torch.inf, 0.0, torch.inf])
    assert kendall_tau(u, torch.tensor([1.0, 1.0, 2.0, 3.0])) == 1


def test_rows_that_have_no_order():
    assert kendall_tau(torch.ones(4), torch.rand(4)).isnan()
    assert kendall_tau(torch.rand(1), torch.rand(1)).isnan()
    assert kendall_tau(torch.rand(2, 0), torch.rand(2, 0)).isnan().all()
    assert kendall_tau(torch.rand(0, 4), torch.rand(0, 4)).shape == (0,)


RUN = [(0, 0.10, 0.07), (50, 0.31, 0.22), (100, 0.43, 0.40), (500, 0.50, 0.38), (1000, 0.66, 0.71)]


@pytest.mark.parametrize(
    ("agreement", "performance", "step"),
    [
        (0.0, 0.10, 0),
        (0.07, 0.31, 50),
        (0.31, 0.43, 100),
        (0.39, 0.43, 100),
        (0.40, 0.66, 1000),
        (0.709, 0.66, 1000),
    ],
)
def test_it_is_the_first_step_that_agrees_more(agreement, performance, step):
    found = contextualized_agreement(agreement, RUN)
    assert (found.performance, found.step, found.reached) == (performance, step, True)
    assert str(found) == f"{performance:.2f}"


@pytest.mark.parametrize("agreement", [0.71, 0.9, 1.0])
def test_it_is_starred_when_never_exceeded(agreement):
    found = contextualized_agreement(agreement, (EvaluatedStep(*each) for each in RUN))
    assert (found.performance, found.step, found.reached) == (0.66, 1000, False)
    assert str(found) == "0.66*"


@pytest.mark.parametrize(
    ("agreement", "run", "words"),
    [
        (0.5, [], "steps of a second run, got none"),
        (0.5, [RUN[1], RUN[0]], "rising steps, got 0 after 50; sort them"),
        (0.5, [RUN[0], RUN[0]], "rising steps, got 0 after 0"),
        (float("nan"), RUN, "an agreement of NaN"),
        (0.5, [(0, 0.1, float("nan"))], "an agreement of NaN"),
        (0.5, [(0, float("nan"), 0.1)], "a performance of NaN"),
        (0.5, [(-1, 0.1, 0.1)], "steps >= 0, got -1"),
    ],
)
def test_what_is_no_run_is_refused(agreement, run, words):
    with pytest.raises(ValueError, match=words):
        contextualized_agreement(agreement, run)


def test_what_is_no_tensor_is_refused():
    ratings = torch.rand(2, 5)
    with pytest.raises(TypeError, match=r"kendall_tau.ratings: expected tensors, got <class 'list'>"):
        kendall_tau(ratings.tolist(), ratings)
    with pytest.raises(TypeError, match=r"kendall_tau.mask: expected a bool tensor, got <class 'list'>"):
        kendall_tau(ratings, ratings, mask=[True] * 5)
