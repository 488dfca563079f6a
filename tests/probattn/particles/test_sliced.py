"""The kernel of random slices: its rotations, its one-dimensional form, and the correlation that it keeps."""

from __future__ import annotations

import pytest
import torch
from pyro.infer.svgd import SteinKernel

from probattn.particles import MarginalRBF, MedianRBF, SlicedRBF, svgd_direction
from probattn.particles.sliced import DENSE, draw_rotation


def seeded(number):
    return torch.Generator().manual_seed(number)


def draws(count, size):
    return torch.randn(2, count, size, generator=seeded(0), dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, DENSE, DENSE + 1, 257])
def test_rotations_are_orthogonal_and_go_back(size):
    rows = draws(3, size)[0]
    rotation = draw_rotation(size, rows, seeded(1))
    assert (rotation.matrix is None) is (size > DENSE)
    axes = rotation.forward(torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(axes @ axes.T, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(rows @ axes, rotation.forward(rows))
    torch.testing.assert_close(rotation.backward(rotation.forward(rows)), rows)


@pytest.mark.parametrize("size", [5, DENSE + 20])
def test_a_direction_is_the_sum_over_its_slices(size):
    """Each slice by itself: particles and gradients in one dimension, moved along it."""
    particles, grads = draws(6, size)
    axes = draw_rotation(size, particles, seeded(4)).forward(torch.eye(size, dtype=torch.float64))
    expected = torch.zeros_like(particles)
    for axis in axes.T:
        along = svgd_direction(
            (particles @ axis)[:, None], (grads @ axis)[:, None], MarginalRBF(scale=8.0), 0.3
        )
        expected += along * axis
    found = svgd_direction(particles, grads, SlicedRBF(generator=seeded(4)), 0.3)
    torch.testing.assert_close(found, expected)


def test_every_call_has_new_slices_and_a_seed_repeats_them():
    particles, grads = draws(6, 5)
    kernel = SlicedRBF(generator=seeded(2))
    first, second = (svgd_direction(particles, grads, kernel) for _ in range(2))
    assert not torch.allclose(first, second)
    assert torch.equal(svgd_direction(particles, grads, SlicedRBF(generator=seeded(2))), first)


def test_in_one_dimension_it_is_the_wider_kernel():
    particles, grads = draws(6, 1)
    expected = svgd_direction(
        particles, grads, MedianRBF(8 * MedianRBF().interact(particles, grads)[2].item())
    )
    torch.testing.assert_close(svgd_direction(particles, grads, SlicedRBF()), expected)
    torch.testing.assert_close(svgd_direction(particles, grads, MarginalRBF(scale=8.0)), expected)


def test_pyro_cannot_take_it():
    assert not isinstance(SlicedRBF(), SteinKernel)


@pytest.mark.parametrize("size", [3, DENSE + 3])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("alike", [False, True])
def test_few_and_coincident_particles_are_finite(size, count, alike):
    particles, grads = draws(count, size).float()
    crowd = torch.full_like(particles, 1e3) if alike else particles
    found = svgd_direction(crowd, grads, SlicedRBF())
    assert bool(found.isfinite().all())
    assert found.abs().max() < 100


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf")])
def test_a_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(ValueError, match="expected scale to be a finite number > 0"):
        SlicedRBF(scale)


def test_it_keeps_a_correlation_that_one_kernel_per_dimension_loses():
    precision = torch.linalg.inv(torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64))

    def correlation(kernel):
        particles = torch.randn(30, 2, generator=seeded(0), dtype=torch.float64)
        for step in range(600):
            particles += 0.15 * (1 - step / 600) * svgd_direction(particles, particles @ precision, kernel)
        return torch.corrcoef(particles.T)[0, 1].item(), particles.var(dim=0).mean().item()

    kept, variance = correlation(SlicedRBF(generator=seeded(1)))
    assert abs(kept - 0.9) < 0.06 and variance > 0.7
    lost, shrunk = correlation(MarginalRBF())
    assert lost < 0.6 and shrunk < 0.5
