"""Measures of particles against closed forms, and what counts as collapsed."""

import math

import pytest
import torch

from probattn.particles import (
    CosineKernel,
    IdentityKernel,
    MarginalRBF,
    MedianRBF,
    ParticleDiagnostics,
    diagnose,
    spread,
    svgd_direction,
)


def draws(count, size, scale=1.0, dtype=torch.float64):
    return scale * torch.randn(count, size, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_the_numbers_are_those_of_their_definitions():
    particles, grads = draws(6, 4), draws(6, 4, 3.0).flip(0)
    found = diagnose(particles, grads, MedianRBF(), repulsion=0.2)
    distances = torch.nn.functional.pdist(particles)
    assert found.smallest_distance == pytest.approx(distances.min().item())
    expected = pytest.approx(distances.min().item() / particles.norm(dim=1).square().mean().sqrt().item())
    assert found.relative_distance == expected
    assert found.bandwidth == pytest.approx(distances.median().item() ** 2 / math.log(6))
    without = svgd_direction(particles, grads, MedianRBF(), 0.0)
    push = svgd_direction(particles, torch.zeros_like(grads), MedianRBF(), 0.2)
    assert found.repulsion_ratio == pytest.approx((push.norm() / without.norm()).item())


def test_one_kernel_per_dimension_has_the_median_bandwidth():
    particles = draws(6, 5)
    widths = MarginalRBF().interact(particles, particles).bandwidth
    assert widths.shape == (5,)
    assert diagnose(particles, particles, MarginalRBF()).bandwidth == pytest.approx(widths.median().item())


def test_a_bandwidth_that_is_given_is_scaled_too():
    kernel = MarginalRBF(bandwidth=2.0, scale=3.0)
    assert kernel.interact(draws(6, 4), draws(6, 4)).bandwidth.tolist() == [6.0] * 4


def test_a_dimension_in_which_most_are_alike_has_the_median_of_those_apart():
    particles = draws(6, 3)
    particles[:5, 1] = particles[0, 1]
    widths = MarginalRBF().interact(particles, particles).bandwidth
    apart = (particles[5, 1] - particles[0, 1]).square().item()
    assert widths[1].item() == pytest.approx(apart / math.log(6))
    others = [torch.nn.functional.pdist(particles[:, [i]]).median().item() ** 2 / math.log(6) for i in (0, 2)]
    assert widths[[0, 2]].tolist() == pytest.approx(others)


@pytest.mark.parametrize("size", [1, 10, 300])
@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
def test_the_spread_is_the_share_of_the_variance(size, scale):
    """Of N(3, 4 I): the particles' own variance over 4."""
    particles = 3 + draws(12, size, scale)
    found = spread(particles, (particles - 3) / 4)
    assert found.item() == pytest.approx(particles.var(dim=0).mean().item() / 4)


def test_the_spread_of_draws_is_1_on_average():
    """Any posterior: here a product of Gumbel distributions, U = x + exp(-x)."""
    uniform = torch.rand(4000, 12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    particles = -torch.log(-torch.log(uniform))
    found = torch.stack([spread(one, 1 - torch.exp(-one)) for one in particles])
    assert abs(found.mean() - 1) < 3 * found.std() / 4000**0.5
    assert 3 * found.std() / 4000**0.5 < 0.03


def test_a_repulsive_weight_is_a_temperature():
    """Particles of exp(-U / a) have spread 1 under a, and a / 1 under 1."""
    particles = draws(200, 20, 0.1**0.5)
    assert spread(particles, particles, 0.1).item() == pytest.approx(10 * spread(particles, particles).item())


def test_collapse_is_named():
    healthy = draws(12, 50)
    assert diagnose(healthy, healthy, MedianRBF()).collapse() is None
    assert "0.01" in diagnose(healthy * 0.1, healthy * 0.1, MedianRBF()).collapse()
    assert "particles have collapsed" in diagnose(healthy * 0.1, healthy * 0.1, MedianRBF()).collapse()
    assert diagnose(healthy * 0.1, healthy * 0.1, MedianRBF()).collapse(least_spread=0.0) is None
    assert diagnose(healthy, -healthy, MedianRBF()).collapse(least_spread=0.0) is None  # not convex there
    assert "-1.02 of the posterior's" in diagnose(healthy, -healthy, MedianRBF()).collapse()
    alike = healthy.clone()
    alike[3] = alike[4]
    expected = "two particles coincide: the smallest distance is 0"
    assert diagnose(alike, alike, MedianRBF()).collapse() == expected


def test_the_smallest_distance_has_all_digits():
    """Far from the others the matrix product alone has lost it."""
    particles = draws(5, 30, dtype=torch.float32)
    particles[3] = particles[1] + 1e-4
    found = diagnose(particles, particles, MedianRBF())
    expected = pytest.approx((particles[3].double() - particles[1].double()).norm().item(), rel=1e-4)
    assert found.smallest_distance == expected


@pytest.mark.parametrize("kernel", [MedianRBF(), MarginalRBF(), CosineKernel(), IdentityKernel()])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_and_coincident_particles_have_finite_measures(kernel, count):
    particles = torch.zeros(count, 4)
    found = diagnose(particles, particles, kernel)
    assert isinstance(found, ParticleDiagnostics)
    for value in (found.bandwidth, found.repulsion_ratio, found.smallest_distance, found.spread):
        assert value is None or math.isfinite(value)
    assert (found.collapse() is None) is (count == 1)


def test_one_particle_has_no_spread():
    with pytest.raises(ValueError, match="spread: expected at least 2 particles, got 1"):
        spread(torch.zeros(1, 2), torch.zeros(1, 2))
