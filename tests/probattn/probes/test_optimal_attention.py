"""Optimal attention against scipy, the paper's example, and its own certificate."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from probattn.probes import NotOptimalError, classifier_probe, optimal_attention
from probattn.probes import optimal_attention as function


def problem(seed, length, outputs, scale, count=1):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, length, outputs, generator=generator, dtype=torch.float64) * scale
    query = torch.randn(count, outputs, generator=generator, dtype=torch.float64) * scale
    return logits, torch.randint(outputs, (count,), generator=generator), query


def loss(weights, logits, target, query):
    return -log_softmax(weights @ logits.numpy() + query.numpy())[target.item()]


def slope(weights, logits, target, query):
    shares = softmax(weights @ logits.numpy() + query.numpy())
    return logits.numpy() @ shares - logits.numpy()[:, target.item()]


def by_scipy(logits, target, query):
    """The least loss that SLSQP finds."""
    length = len(logits)
    return minimize(
        loss,
        np.full(length, 1 / length),
        (logits, target, query),
        method="SLSQP",
        jac=slope,
        bounds=[(0, 1)] * length,
        constraints={
            "type": "eq",
            "fun": lambda weights: weights.sum() - 1,
            "jac": lambda _: np.ones(length),
        },
        options={"maxiter": 1000, "ftol": 1e-13},
    )


def test_equation_30():
    gamma = torch.tensor([[0.0, 0.0, 0.0], [0.0, -10.0, 5.0], [0.0, 5.0, -10.0]])
    found = optimal_attention(gamma, torch.tensor(0))
    expected = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-7)
    assert found.loss.item() == pytest.approx(np.log(1 + 2 * np.exp(-2.5)), abs=1e-8)
    probe = gamma.softmax(dim=-1)[:, 0]
    assert probe.argmax() == 0  # the optimum does not attend to the largest probe


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 12),
    outputs=st.integers(2, 15),
    scale=st.sampled_from([0.1, 1.0, 3.0, 8.0]),
)
def test_scipy_finds_nothing_better(seed, length, outputs, scale):
    logits, target, query = problem(seed, length, outputs, scale)
    found = optimal_attention(logits, target, query)
    oracle = by_scipy(logits[0], target, query[0])
    assert found.loss.item() <= oracle.fun + 1e-8
    if oracle.success:
        assert found.loss.item() >= oracle.fun - 1e-6
    expected = pytest.approx(loss(found.weights[0].numpy(), logits[0], target, query[0]), abs=1e-9)
    assert found.loss.item() == expected


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(("length", "outputs"), [(1, 3), (2, 2), (15, 50), (40, 300), (150, 8)])
def test_the_certificate_holds(scale, length, outputs):
    logits, target, query = problem(1, length, outputs, scale, count=10)
    found = optimal_attention(logits, target, query)
    assert (found.weights >= 0).all()
    torch.testing.assert_close(found.weights.sum(dim=-1), torch.ones(10, dtype=torch.float64))
    mixed = (found.weights.unsqueeze(-1) * logits).sum(dim=1) + query
    own = logits.gather(-1, target.view(-1, 1, 1).expand(-1, length, 1))
    slope = ((logits - own) @ mixed.softmax(-1).unsqueeze(-1)).squeeze(-1)
    gap = (found.weights * slope).sum(dim=-1) - slope.amin(dim=-1)
    assert gap.max() <= 1.1e-8
    # The bound is one: no vertex and no random weights are better by more.
    others = torch.distributions.Dirichlet(torch.full((length,), 0.3, dtype=torch.float64)).sample((500, 10))
    others = torch.cat((others, torch.eye(length, dtype=torch.float64).unsqueeze(1).expand(-1, 10, -1)))
    mixed = torch.einsum("nbl,blo->nbo", others, logits) + query
    losses = -mixed.log_softmax(-1).gather(-1, target.expand(len(others), 10).unsqueeze(-1)).squeeze(-1)
    assert (found.loss - found.gap <= losses.amin(dim=0) + 1e-9).all()


def test_two_classes_attend_to_the_largest_probe():
    """Eq. 12: the probability rises with every log-odds ratio, so that all weight goes to the best position."""
    logits, target, _ = problem(3, 12, 2, 2.0, count=50)
    found = optimal_attention(logits, target)
    best = torch.stack([classifier_probe(lambda states: states, logits, target)]).squeeze(0).argmax(dim=-1)
    assert (found.weights.argmax(dim=-1) == best).all()
    assert found.weights.gather(-1, best.unsqueeze(-1)).min() > 0.999


def test_masked_positions_are_left_out():
    logits, target, query = problem(4, 9, 6, 2.0, count=4)
    mask = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[3] = False
    hidden = logits.masked_fill(~mask.unsqueeze(-1), torch.nan)
    found = optimal_attention(hidden, target, query, mask)
    assert (found.weights[~mask] == 0).all()
    for row in range(3):
        alone = optimal_attention(logits[row, mask[row]], target[row], query[row])
        torch.testing.assert_close(found.loss[row], alone.loss, rtol=0, atol=2e-8)
    empty = -query[3].log_softmax(-1)[target[3]]
    assert (found.weights[3] == 0).all() and found.gap[3] == 0
    torch.testing.assert_close(found.loss[3], empty)


def test_a_sentence_serves_all_its_words():
    generator = torch.Generator().manual_seed(5)
    logits, query = torch.randn(2, 1, 7, 5, generator=generator), torch.randn(2, 3, 5, generator=generator)
    target = torch.randint(5, (2, 3), generator=generator)
    found = optimal_attention(logits, target, query)
    assert found.weights.shape == (2, 3, 7) and found.loss.shape == found.gap.shape == (2, 3)
    for b in range(2):
        for t in range(3):
            alone = optimal_attention(logits[b, 0], target[b, t], query[b, t])
            torch.testing.assert_close(found.loss[b, t], alone.loss, rtol=0, atol=2e-8)


def test_problems_are_taken_a_few_at_a_time(monkeypatch):
    import sys

    logits, target, query = problem(6, 8, 5, 2.0, count=11)
    whole = optimal_attention(logits, target, query)
    monkeypatch.setattr(sys.modules[function.__module__], "_ENTRIES", 8 * 5 * 3)
    torch.testing.assert_close(optimal_attention(logits, target, query).loss, whole.loss, rtol=0, atol=2e-8)


def test_equal_positions_share_and_nothing_to_solve_is_solved():
    gamma = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    found = optimal_attention(gamma, torch.tensor(0))
    torch.testing.assert_close(
        found.weights[:2], torch.tensor([0.5, 0.5], dtype=torch.float64), rtol=0, atol=1e-6
    )
    found = optimal_attention(torch.zeros(4, 3), torch.tensor(1))
    torch.testing.assert_close(found.weights, torch.full((4,), 0.25, dtype=torch.float64))
    assert optimal_attention(torch.rand(0, 4, 3), torch.zeros(0).long()).weights.shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"target": torch.tensor([0.0])}, TypeError, "integer targets"),
        ({"target": 0}, TypeError, "target: expected a tensor, got <class 'int'>"),
        ({"target": torch.tensor([3])}, ValueError, r"in 0 .. 2, got 3 .. 3"),
        ({"position_logits": torch.rand(3, 4, 3)}, ValueError, "logits that fit targets"),
        ({"position_logits": torch.rand(1, 0, 3)}, ValueError, "with L, O >= 1"),
        ({"position_logits": torch.rand(3)}, ValueError, r"logits \[..., L, O\]"),
        ({"position_logits": torch.full((1, 4, 3), torch.inf)}, ValueError, "finite logits"),
        ({"query_logits": torch.rand(1, 4)}, ValueError, "logits that fit"),
        ({"mask": torch.ones(1, 4)}, TypeError, "a bool mask"),
        ({"tolerance": 0.0}, ValueError, "tolerance > 0"),
        ({"max_steps": 1}, NotOptimalError, "in 1 problems after 1 steps; raise tolerance or max_steps"),
    ],
)
def test_wrong_inputs_are_named(change, error, words):
    logits, target, query = problem(0, 4, 3, 3.0)
    options = {"position_logits": logits, "target": target, "query_logits": query} | change
    with pytest.raises(error, match=words):
        optimal_attention(**options)


def test_logits_that_overflow_end_in_an_error():
    logits = 1e6 * torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    with pytest.raises(NotOptimalError, match="expected gaps of at most"):
        optimal_attention(logits, torch.tensor(0))
