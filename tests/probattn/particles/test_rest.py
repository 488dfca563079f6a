"""Where the particles of a normal distribution come to rest, beside the figures of an independent implementation."""

import statistics

import pytest
import torch
from pyro.infer import RBFSteinKernel

from probattn.particles import MarginalRBF, MedianRBF, PyroKernel, SlicedRBF, diagnose, svgd_direction


def rest(kernel, size, correlation, count, seed, steps=1000):
    """The particles, and gradients of U there."""
    precision = torch.linalg.inv((1 - correlation) * torch.eye(size).double() + correlation)
    generator = torch.Generator().manual_seed(seed)
    particles = torch.randn(count, size, dtype=torch.float64, generator=generator)
    optimizer = torch.optim.Adam([particles], lr=0.05)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=5e-5)
    for _ in range(steps):
        particles.grad = -svgd_direction(particles, particles @ precision, kernel)
        optimizer.step()
        falling.step()
    return particles, particles @ precision


def moments(particles):
    covariance = particles.T.cov()
    variance, size = covariance.diagonal().mean(), len(covariance)
    return float(variance), float((covariance.sum() / size / variance - 1) / (size - 1))


@pytest.mark.slow_but("median")
@pytest.mark.parametrize(
    ("make", "size", "correlation", "count", "expected"),
    [
        (MedianRBF, 10, 0.0, 12, (0.28, 0.0)),
        (MedianRBF, 2, 0.9, 30, (0.90, 0.90)),
        (MarginalRBF, 2, 0.9, 30, (0.24, 0.27)),
        (lambda: PyroKernel(RBFSteinKernel(), "univariate"), 10, 0.0, 12, (0.86, 0.0)),
    ],
    ids=["median", "median, correlated", "marginal", "Pyro's, univariate"],
)
def test_moments_are_those_of_an_independent_program(make, size, correlation, count, expected):
    measured = [moments(rest(make(), size, correlation, count, seed)[0]) for seed in (0, 1)]
    assert tuple(map(statistics.fmean, zip(*measured, strict=True))) == pytest.approx(expected, abs=0.06)


def test_an_ensemble_that_has_lost_its_variance_is_named():
    kernel = MedianRBF()
    particles, gradients = rest(kernel, 100, 0.0, 12, 0, steps=500)
    assert moments(particles)[0] < 0.1
    assert "collapsed" in diagnose(particles, gradients, kernel).collapse()


@pytest.mark.slow
def test_few_particles_of_slices_are_too_wide_and_their_spread_does_not_show_it():
    kernel = SlicedRBF(generator=torch.Generator().manual_seed(0))
    particles, gradients = rest(kernel, 50, 0.9, 12, 0)
    diagnostics = diagnose(particles, gradients, kernel)
    assert moments(particles)[0] > 1.5
    assert 0.7 < diagnostics.spread < 1
    assert diagnostics.collapse() is None
