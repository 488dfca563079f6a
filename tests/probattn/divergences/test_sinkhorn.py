"""Optimal transport against POT, closed forms and derivatives."""

from __future__ import annotations

import importlib
import math

import numpy as np
import ot
import pytest
import torch

from probattn.divergences import sinkhorn

EPSILON = 0.01


def seeded(number):
    return torch.Generator().manual_seed(number)


def clouds(queries=30, keys=25, size=4, spread=0.3, dtype=torch.float32):
    query = torch.randn(2, 2, queries, size, generator=seeded(0)) * spread
    key = torch.randn(2, 2, keys, size, generator=seeded(1)) * spread + 0.5 * spread
    return query.to(dtype), key.to(dtype)


def plan_cost(query, key):
    """POT's entropic plan and what it pays, in float64."""
    cost = ot.dist(query.double().numpy(), key.double().numpy()) / 2
    weights = [np.full(len(points), 1 / len(points)) for points in (query, key)]
    plan = ot.bregman.sinkhorn_log(*weights, cost, EPSILON, numItermax=20_000, stopThr=1e-8, warn=False)
    assert np.abs(plan.sum(0) - weights[1]).sum() < 1e-5, "the oracle has not converged"
    return (plan * cost).sum()


@pytest.mark.parametrize(("size", "spread"), [(2, 0.5), (4, 0.3), (32, 0.3)])
def test_the_plan_cost_is_that_of_pot(size, spread):
    query, key = clouds(size=size, spread=spread)
    found = sinkhorn(query, key, epsilon=EPSILON, debias=False)
    for sample in range(2):
        expected = [plan_cost(query[sample, head], key[sample, head]) for head in range(2)]
        np.testing.assert_allclose(found[sample].numpy(), expected, rtol=1e-3)


def test_without_sweeps_it_is_within_some_percent():
    query, key = clouds()
    fast = sinkhorn(query, key, debias=False, sweeps=0)
    torch.testing.assert_close(fast, sinkhorn(query, key, debias=False), rtol=0.1, atol=0)


def test_with_masks_it_is_that_of_the_tokens_that_count():
    query, key = clouds(10, 12, 3)
    masks = torch.arange(10) < torch.tensor([[6], [9]]), torch.arange(12) < torch.tensor([[12], [7]])
    found = sinkhorn(query, key, debias=False, query_mask=masks[0], key_mask=masks[1])
    for sample in range(2):
        q, k = query[sample, 0][masks[0][sample]], key[sample, 0][masks[1][sample]]
        assert abs(found[sample, 0].item() / plan_cost(q, k) - 1) < 1e-3


@pytest.mark.parametrize("sweeps", [0, 10, 100])
def test_the_debiased_form_is_0_for_equal_sets(sweeps):
    query, _ = clouds()
    shuffled = query[:, :, torch.randperm(30, generator=seeded(2))]
    assert sinkhorn(query, query, sweeps=sweeps).abs().max() < (1e-5 if sweeps else 1e-3)
    assert sinkhorn(query, shuffled, sweeps=sweeps).abs().max() < (1e-5 if sweeps else 1e-3)


def test_it_is_symmetric():
    query, key = clouds()
    for debias in (True, False):
        there, back = sinkhorn(query, key, debias=debias), sinkhorn(key, query, debias=debias)
        torch.testing.assert_close(there, back, rtol=1e-3, atol=1e-5)


def test_a_translation_costs_half_its_square():
    query, _ = clouds(size=3)
    shift = torch.tensor([3.0, -4.0, 0.0])
    torch.testing.assert_close(sinkhorn(query, query + shift), torch.full((2, 2), 12.5), rtol=1e-3, atol=0)
    far = sinkhorn(query, query + 30 * shift)  # beyond the distance at which the annealing begins
    torch.testing.assert_close(far, torch.full((2, 2), 11_250.0), rtol=1e-3, atol=0)


def test_sweeps_that_lower_the_dual_are_not_taken(monkeypatch):
    """The first of two sets is led astray; it keeps what the annealing found, the other is refined."""
    module = importlib.import_module("probattn.divergences.sinkhorn")
    query, key = (torch.cat([tensor, tensor]) for tensor in clouds(6, 5, dtype=torch.float64))
    annealed, refined = (sinkhorn(query, key, debias=False, sweeps=sweeps) for sweeps in (0, 5))
    assert not torch.isclose(annealed, refined, rtol=1e-6).any()
    sweep = module._sweep

    def astray(*arguments):
        f, g = sweep(*arguments)
        noise = torch.randn(g.shape, generator=seeded(7), dtype=g.dtype)
        return f, torch.cat([(g + noise)[: len(g) // 2], g[len(g) // 2 :]])

    monkeypatch.setattr(module, "_sweep", astray)
    found = sinkhorn(query, key, debias=False, sweeps=5)
    torch.testing.assert_close(found, torch.cat([annealed[:2], refined[2:]]))


def test_gaussians_have_the_distance_of_bures():
    """In one dimension W2^2 / 2 = ((m1 - m2)^2 + (s1 - s2)^2) / 2."""
    quantiles = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(200) + 0.5) / 200)
    query, key = quantiles.view(1, 1, -1, 1), (quantiles * 1.5 + 1.0).view(1, 1, -1, 1)
    assert abs(sinkhorn(query, key, epsilon=1e-3).item() / (1.25 / 2) - 1) < 0.02


@pytest.mark.parametrize("debias", [True, False])
def test_the_gradient_is_that_of_the_regularised_cost(debias):
    query, key = clouds(4, 5, 2, dtype=torch.float64)
    query.requires_grad_()
    sinkhorn(query, key, epsilon=0.05, debias=debias, sweeps=400).sum().backward()

    def regularised(points):
        weights = np.full(4, 1 / 4), np.full(5, 1 / 5)
        pairs = [(points, key[0, 0].numpy(), *weights)]
        if debias:
            pairs.append((points, points, weights[0], weights[0]))
        values = []
        for x, y, a, b in pairs:
            cost = ot.dist(x, y) / 2
            plan = ot.bregman.sinkhorn_log(a, b, cost, 0.05, numItermax=100_000, stopThr=1e-12)
            values.append((plan * cost).sum() + 0.05 * (plan * np.log(plan / np.outer(a, b))).sum())
        return values[0] - (values[1] / 2 if debias else 0)

    points = query.detach()[0, 0].numpy()
    for place in np.ndindex(4, 2):
        step = np.zeros((4, 2))
        step[place] = 1e-4
        slope = (regularised(points + step) - regularised(points - step)) / 2e-4
        assert abs(slope - query.grad[0, 0][place].item()) < 1e-4


def test_a_step_along_the_gradient_lowers_it():
    query, key = (tensor.requires_grad_() for tensor in clouds())
    before = sinkhorn(query, key)
    before.sum().backward()
    for tensor in (query, key):
        assert tensor.grad.abs().max() > 0
    with torch.no_grad():
        after = sinkhorn(query - 0.5 * query.grad, key - 0.5 * key.grad)
    assert bool((after < before).all())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"epsilon": 0.0}, r"sinkhorn\.epsilon: expected a number > 0, got 0.0"),
        ({"epsilon": math.inf}, r"epsilon: expected a finite number > 0, got inf"),
        ({"epsilon": math.nan}, r"epsilon: expected a finite number > 0, got nan"),
        ({"scaling": 1.0}, r"scaling: expected a number in \(0, 1\), got 1.0"),
        ({"scaling": 0.0}, r"scaling: expected a number in \(0, 1\), got 0.0"),
        ({"sweeps": -1}, "sweeps: expected an integer >= 0, got -1"),
        ({"sweeps": 2.5}, "sweeps: expected an integer >= 0, got 2.5"),
    ],
)
def test_options_out_of_range_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        sinkhorn(*clouds(), **option)
