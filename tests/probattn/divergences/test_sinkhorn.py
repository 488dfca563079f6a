"""Optimal transport against POT, closed forms and derivatives."""

import importlib
import math
import warnings

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


def converged(query, key):
    """POT's entropic plan, annealed and in float64, and the costs."""
    cost = ot.dist(query.double().numpy(), key.double().numpy()) / 2
    weights = [np.full(len(points), 1 / len(points)) for points in (query, key)]
    iterations = {
        "numItermax": 100,
        "epsilon0": 100.0,
        "numInnerItermax": 2000,
        "stopThr": 1e-9,
        "warn": False,
    }
    with warnings.catch_warnings(action="ignore"):  # at larger epsilons it need not converge
        plan = ot.bregman.sinkhorn_epsilon_scaling(*weights, cost, EPSILON, **iterations)
    lack = sum(np.abs(plan.sum(1 - axis) - weights[axis]).sum() for axis in (0, 1))
    assert lack < 2e-6, "the oracle has not converged"
    return plan, cost


def plan_cost(query, key):
    plan, cost = converged(query, key)
    return (plan * cost).sum()


def clusters(dtype=torch.float64):
    """Queries and keys of four samples, each in four tight clusters that have different numbers of both."""
    centres = 4 * torch.randn(4, 1, 4, 8, generator=seeded(0), dtype=torch.float64)
    sets = []
    for seed in (1, 2):
        members = torch.randint(4, (4, 1, 40, 1), generator=seeded(seed)).expand(-1, -1, -1, 8)
        noise = torch.randn(4, 1, 40, 8, generator=seeded(seed + 2), dtype=torch.float64)
        sets.append((centres.gather(2, members) + 0.1 * noise).to(dtype))
    return sets


ACCURACY = {10: (1e-3, 0.1), 20: (2e-4, 3e-2), 50: (2e-5, 2e-3)}
"""Largest relative errors of the plan cost of normal clouds and of its gradient, by sweeps."""


@pytest.mark.slow_but("3-32-0.03", "30-4-0.3")
@pytest.mark.parametrize(
    ("ratio", "size", "spread"),
    [(3, 32, 0.03), (30, 2, 0.5), (30, 4, 0.3), (35, 32, 0.1), (315, 32, 0.3), (3500, 32, 1.0)],
)
def test_the_plan_cost_is_that_of_pot_and_its_gradient_that_of_the_plan(ratio, size, spread):
    """Of normal clouds at all ratios of cost to epsilon, in both types."""
    query, key = (tensor[:, :1] for tensor in clouds(size=size, spread=spread, dtype=torch.float64))
    pairs = list(zip(query[:, 0], key[:, 0], strict=True))
    plans = [converged(q, k) for q, k in pairs]
    costs = [(plan * cost).sum() for plan, cost in plans]
    assert 0.5 < np.mean([cost.mean() for _, cost in plans]) / EPSILON / ratio < 2
    slopes = [
        plan.sum(1)[:, None] * q.numpy() - plan @ k.numpy()
        for (plan, _), (q, k) in zip(plans, pairs, strict=True)
    ]
    for dtype in (torch.float32, torch.float64):
        for sweeps, (of_cost, of_gradient) in ACCURACY.items():
            leaf = query.to(dtype).clone().requires_grad_()
            found = sinkhorn(leaf, key.to(dtype), epsilon=EPSILON, debias=False, sweeps=sweeps)
            found.sum().backward()
            np.testing.assert_allclose(found[:, 0].detach().numpy(), costs, rtol=of_cost)
            for grad, slope in zip(leaf.grad[:, 0].numpy(), slopes, strict=True):
                assert np.linalg.norm(grad - slope) < of_gradient * np.linalg.norm(slope)


def test_the_debiased_form_is_that_of_pot():
    """OT_epsilon of the pair less half of either set's with itself, each by POT's plan and its entropy."""
    query, key = clouds(12, 10, 8, dtype=torch.float64)

    def regularised(x, y):
        cost, weights = (
            ot.dist(x.numpy(), y.numpy()) / 2,
            [np.full(len(each), 1 / len(each)) for each in (x, y)],
        )
        plan = ot.bregman.sinkhorn_log(*weights, cost, 0.3, numItermax=20_000, stopThr=1e-10)
        return (plan * cost).sum() + 0.3 * (plan * np.log(plan * len(x) * len(y))).sum()

    q, k = query[0, 0], key[0, 0]
    expected = regularised(q, k) - (regularised(q, q) + regularised(k, k)) / 2
    assert sinkhorn(query, key, epsilon=0.3)[0, 0].item() == pytest.approx(expected, rel=1e-6)
    assert sinkhorn(query.float(), key.float(), epsilon=0.3)[0, 0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sweeps", "accuracy"), [(10, 1e-2), (20, 1e-4), (50, 1e-4)])
def test_clusters_far_apart_have_the_optimum(sweeps, accuracy, dtype):
    """At some thousand times epsilon the plan cost is the unregularised one, but for what epsilon allows."""
    query, key = clusters(dtype)
    found = sinkhorn(query, key, debias=False, sweeps=sweeps)[:, 0]
    for value, x, y in zip(found.tolist(), query[:, 0], key[:, 0], strict=True):
        optimum = ot.emd2([], [], ot.dist(x.double().numpy(), y.double().numpy()) / 2)
        assert (1 - accuracy) * optimum < value < (1 + accuracy) * (optimum + EPSILON * math.log(40))


@pytest.mark.slow_but("3-16-4.0-0.05-16-12-10-dtype0", "3-16-4.0-0.05-16-12-10-dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sweeps", [10, 50])
@pytest.mark.parametrize(
    ("clusters", "size", "apart", "spread", "queries", "keys"),
    [
        (3, 16, 4.0, 0.05, 16, 12),
        (3, 4, 8.0, 0.05, 16, 12),
        (3, 16, 16.0, 0.05, 5, 40),
        (2, 16, 16.0, 0.5, 59, 54),  # a thousandth of the mass, at most of the cost, changes its cluster
        (3, 4, 16.0, 0.2, 39, 58),
    ],
)
def test_tight_clusters_have_the_optimum_of_the_linear_program(
    clusters, size, apart, spread, queries, keys, sweeps, dtype
):
    pairs, optima = [], []
    for seed in range(4):
        source = seeded(seed)
        centres = apart * torch.randn(clusters, size, generator=source, dtype=torch.float64)
        sets = [
            centres[torch.randint(clusters, (count,), generator=source)]
            + spread * torch.randn(count, size, generator=source, dtype=torch.float64)
            for count in (queries, keys)
        ]
        pairs.append(sets)
        optima.append(ot.emd2([], [], ot.dist(*(each.numpy() for each in sets)) / 2))
    query, key = (torch.stack(sets)[:, None].to(dtype) for sets in zip(*pairs, strict=True))
    found = sinkhorn(query, key, debias=False, sweeps=sweeps)[:, 0]
    for value, optimum in zip(found.tolist(), optima, strict=True):
        assert optimum * (1 - 1e-3) < value < optimum * (1 + 1e-5) + EPSILON * math.log(max(queries, keys))


def test_a_value_depends_on_no_other_problem_of_the_batch():
    """Those that are solved again are solved alone."""
    hard, easy = clusters(), clouds(40, 40, 8, dtype=torch.float64)
    together = [torch.cat([easy[side][:, :1], hard[side], easy[side][:, 1:]]) for side in (0, 1)]
    found = sinkhorn(*together, debias=False, sweeps=10)
    for row in range(len(found)):
        alone = sinkhorn(*(each[row : row + 1] for each in together), debias=False, sweeps=10)
        torch.testing.assert_close(found[row : row + 1], alone, rtol=1e-12, atol=0)


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
    monkeypatch.setattr(module, "LATE", math.inf)  # nothing is solved again
    query, key = (torch.cat([tensor, tensor]) for tensor in clouds(6, 5, dtype=torch.float64))
    annealed, refined = (sinkhorn(query, key, debias=False, sweeps=sweeps) for sweeps in (0, 5))
    assert not torch.isclose(annealed, refined, rtol=1e-6).any()
    sweep = module._swept

    def astray(*arguments):
        f, g, lack = sweep(*arguments)
        worse = f - torch.rand(f.shape, generator=seeded(7), dtype=f.dtype)
        return torch.cat([worse[: len(f) // 2], f[len(f) // 2 :]]), g, lack

    monkeypatch.setattr(module, "_swept", astray)
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
    sinkhorn(query, key, epsilon=0.05, debias=debias).sum().backward()

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
        assert abs(slope - query.grad[0, 0][place].item()) < 1e-6


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


@pytest.mark.parametrize(
    ("extent", "start"), [(1.0, 64.0), (64.0, 64.0), (65.0, 128.0), (1000.0, 1024.0), (math.inf, 64.0)]
)
def test_annealing_starts_at_a_power_of_two_that_holds_all_points(extent, start):
    module = importlib.import_module("probattn.divergences.sinkhorn")
    ends = torch.tensor([[[0.0, 0.0]], [[0.6 * extent, 0.8 * extent]]])
    source, target = (module._Cloud(points[None], torch.ones(1, 1)) for points in ends)
    assert module._diameter(source, target) == start


def test_sweeps_go_down_to_epsilon_by_squared_distances():
    module = importlib.import_module("probattn.divergences.sinkhorn")
    anneal = module._Annealing(0.25, 0.25, 10, 64.0)
    assert list(anneal.strengths(anneal.coarsest, 1 / 16)) == [256.0, 16.0, 1.0, 0.25]
    assert list(anneal.strengths(1.0, 0.5)) == [1.0, 0.5, 0.25]
    assert module._Annealing(0.25, 0.5, 10, 1.0).coarsest == 1.0
    assert list(module._Annealing(4.0, 0.5, 10, 1.0).strengths(1.0, 0.25)) == [4.0]
