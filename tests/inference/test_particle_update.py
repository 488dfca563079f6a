"""What the samplers' directions stand for: heads and whole models of posteriors that are known."""

import math

import pytest
import torch
from torch import nn

from probattn import RepulsiveAttention
from probattn.inference import EnsembleOptions
from probattn.inference.ensembles.particles import StackedSet
from probattn.inference.particle_update import ParticleUpdate
from probattn.particles import HeadSlices, MedianRBF, svgd_direction

PARTICLES, MEAN = 10, 1.0


def heads(size, dtype=torch.float64):
    """Heads with one weight in each of ``size`` columns, and what the driver makes of them."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(0.1 * torch.randn(PARTICLES, size, generator=generator, dtype=dtype))
    return weight, HeadSlices("heads", weight, PARTICLES, 1)


def walk(update, weight, steps):
    """Plain gradient descent at rate 1 on u = (x - 1)^2 / 2, the mean over data; the particles after each step."""
    for step in range(steps):
        weight.grad = weight.detach() - MEAN
        update.direct(step)
        weight.data.sub_(weight.grad)
        yield weight.detach()


def variance(update, weight, steps=1200, burn_in=100):
    """Mean squared deviation from the posterior's mean."""
    squares = [(found - MEAN).square().mean() for found in walk(update, weight, steps)]
    return float(torch.stack(squares[burn_in:]).mean())


def direction(options, particles, grads, num_data, step=0):
    """What the optimiser sees over minus epsilon."""
    weight = nn.Parameter(particles.clone())
    weight.grad = grads.clone()
    ParticleUpdate({"heads": (options, HeadSlices("heads", weight, PARTICLES, 1))}, num_data).direct(step)
    return -weight.grad / options.step_size


@pytest.mark.slow_but("spos-50-1", "sgld-50-1")
@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("num_data", [50, 400])
@pytest.mark.parametrize("sampler", ["spos", "sgld"])
def test_heads_have_the_posteriors_variance_by_default(sampler, num_data, size):
    """exp(-N u) of N data has variance 1 / N. SPOS has less by what its kernel pulls together."""
    weight, slices = heads(size)
    options = RepulsiveAttention(sampler, repulsion=1 / num_data, step_size=0.1)
    found = variance(ParticleUpdate({"heads": (options, slices)}, num_data), weight)
    assert 0.85 < found * num_data < 1.2


@pytest.mark.slow_but("4.0-4.0-spos", "4.0-4.0-sgld")
@pytest.mark.parametrize("sampler", ["spos", "sgld"])
@pytest.mark.parametrize(("temperature", "expected"), [(4.0, 4.0), (0.25, 0.25), ("datum", 50.0)])
def test_a_temperature_widens_it(sampler, temperature, expected):
    weight, slices = heads(20)
    options = RepulsiveAttention(sampler, temperature=temperature, repulsion=expected / 50, step_size=0.1)
    found = variance(ParticleUpdate({"heads": (options, slices)}, 50), weight)
    assert 0.85 < found * 50 / expected < 1.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("langevin", "temperature"), [(1.0, 1.0), (0.3, 1.0), (2.0, 0.5)])
def test_without_a_kernel_spos_has_the_variance_of_the_closed_form(langevin, temperature, dtype):
    """Alone, a particle follows x' = (1 - e (w + 1 / M)) x + sqrt(2 e w T / N) xi."""
    step, num_data = 0.2, 80
    weight, slices = heads(50, dtype)
    options = RepulsiveAttention(
        "spos", kernel="identity", step_size=step, langevin=langevin, temperature=temperature
    )
    found = variance(ParticleUpdate({"heads": (options, slices)}, num_data), weight)
    kept = 1 - step * (langevin + 1 / PARTICLES)
    expected = 2 * step * langevin * temperature / num_data / (1 - kept**2)
    assert weight.dtype == dtype and abs(found / expected - 1) < 0.05


def test_as_langevins_weight_vanishes_spos_is_svgd_with_the_same_repulsion():
    generator = torch.Generator().manual_seed(3)
    particles, grads = torch.randn(2, PARTICLES, 5, generator=generator, dtype=torch.float64)
    expected = svgd_direction(particles, grads, MedianRBF(), 0.3)
    for langevin, tolerance in ((1e-8, 1e-2), (1e-20, 1e-8)):
        options = RepulsiveAttention("spos", repulsion=0.3, langevin=langevin)
        found = direction(options, particles, grads, num_data=50)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    svgd = direction(RepulsiveAttention(repulsion=0.3), particles, grads, num_data=50)
    torch.testing.assert_close(svgd, expected, atol=1e-15, rtol=1e-15)


def test_equation_5_as_printed_has_the_mean_loss_for_its_potential():
    """phi - grad u / b + sqrt(2 / (b epsilon)) xi, whatever the number of data."""
    generator = torch.Generator().manual_seed(3)
    particles, grads = torch.randn(2, PARTICLES, 400, generator=generator, dtype=torch.float64)
    b, step_size = 7.0, 0.05
    options = RepulsiveAttention(
        "spos", step_size=step_size, temperature="datum", langevin=1 / b, repulsion=0.3
    )
    found = direction(options, particles, grads, num_data=50)
    torch.testing.assert_close(found, direction(options, particles, grads, num_data=5000))
    still = direction(
        options, particles, torch.zeros_like(grads), num_data=50
    )  # the same repulsion and noise
    pulled = svgd_direction(particles, grads, MedianRBF(), 0.0)
    torch.testing.assert_close(found - still, pulled - grads / b, atol=1e-12, rtol=0)
    noise = still - svgd_direction(particles, torch.zeros_like(grads), MedianRBF(), 0.3)
    assert abs(noise.var() * b * step_size / 2 - 1) < 5 * math.sqrt(2 / noise.numel())


@pytest.mark.parametrize("sampler", ["spos", "sgld", "svgd"])
def test_heads_and_whole_models_move_alike(sampler):
    """They state their repulsion in two scales, that of the mean and that of the sum; all else is the same."""
    num_data, shared = 50, {"step_size": 0.1, "prior": 2.0, "temperature": 0.5, "langevin": 0.7}
    (ours, slices), (theirs, _) = heads(3), heads(3)
    whole = StackedSet({"weight": theirs})
    updates = (
        ParticleUpdate(
            {"x": (RepulsiveAttention(sampler, repulsion=0.3 / num_data, **shared), slices)}, num_data
        ),
        ParticleUpdate(
            {"x": (EnsembleOptions(sampler, repulsion=0.3, **shared), whole)}, num_data, scale=float(num_data)
        ),
    )
    for one, other in zip(walk(updates[0], ours, 20), walk(updates[1], theirs, 20), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)
