"""The kernel of random slices: its rotations, its one-dimensional form, and the correlation that it keeps."""

import numpy as np
import pytest
import torch
from pyro.infer.svgd import SteinKernel
from scipy.linalg import sqrtm
from sklearn.covariance import oas

from probattn.particles import MarginalRBF, MedianRBF, SlicedRBF, svgd_direction
from probattn.particles.sliced import DENSE, draw_rotation, whiten


def seeded(number):
    return torch.Generator().manual_seed(number)


def draws(count, size):
    return torch.randn(2, count, size, generator=seeded(0), dtype=torch.float64)


def root_of(particles):
    """The root of the shrunk covariance over its mean variance, as scikit-learn has it."""
    covariance, _ = oas(particles.numpy())
    return torch.from_numpy(sqrtm(covariance / (np.trace(covariance) / len(covariance))).real)


@pytest.mark.parametrize(("count", "size"), [(6, 4), (30, 10), (6, 40), (2, 5)])
def test_whitening_takes_the_root_of_the_shrunk_covariance(count, size):
    particles = draws(count, size)[0] * torch.linspace(0.2, 5, size, dtype=torch.float64) + 7
    found, expected = whiten(particles), root_of(particles)
    unit = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(found.apply(unit), expected)
    torch.testing.assert_close(found.invert(unit), torch.linalg.inv(expected))


@pytest.mark.parametrize("particles", [torch.zeros(3, 4), torch.full((3, 4), 1e6), torch.ones(1, 4)])
def test_particles_in_one_place_are_not_whitened(particles):
    assert torch.equal(whiten(particles).apply(torch.eye(4)), torch.eye(4))


@pytest.mark.parametrize("size", [1, 2, DENSE, DENSE + 1, 257])
def test_rotations_are_orthogonal_and_go_back(size):
    rows = draws(3, size)[0]
    rotation = draw_rotation(size, rows, seeded(1))
    assert (rotation.values.dim() == 1) is (size > DENSE)
    axes = rotation.forward(torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(axes @ axes.T, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(rows @ axes, rotation.forward(rows))
    torch.testing.assert_close(rotation.backward(rotation.forward(rows)), rows)


@pytest.mark.parametrize("size", [5, DENSE + 20])
def test_a_direction_is_the_sum_over_its_slices(size):
    """Each slice of whitened coordinates by itself: particles and gradients in one dimension, moved along it."""
    particles, grads = draws(6, size)
    root = root_of(particles)
    whitened, pulled = particles @ torch.linalg.inv(root), grads @ root
    axes = draw_rotation(size, particles, seeded(4)).forward(torch.eye(size, dtype=torch.float64))
    expected = torch.zeros_like(particles)
    for axis in axes.T:
        along = svgd_direction(
            (whitened @ axis)[:, None], (pulled @ axis)[:, None], MarginalRBF(scale=4.0), 0.3
        )
        expected += along * axis
    found = svgd_direction(particles, grads, SlicedRBF(generator=seeded(4)), 0.3)
    torch.testing.assert_close(found, expected @ root)


def test_every_call_has_new_slices_and_a_seed_repeats_them():
    particles, grads = draws(6, 5)
    kernel = SlicedRBF(generator=seeded(2))
    first, second = (svgd_direction(particles, grads, kernel) for _ in range(2))
    assert not torch.allclose(first, second)
    assert torch.equal(svgd_direction(particles, grads, SlicedRBF(generator=seeded(2))), first)


def test_in_one_dimension_it_is_the_wider_kernel():
    particles, grads = draws(6, 1)
    expected = svgd_direction(
        particles, grads, MedianRBF(4 * MedianRBF().interact(particles, grads)[2].item())
    )
    torch.testing.assert_close(svgd_direction(particles, grads, SlicedRBF()), expected)
    torch.testing.assert_close(svgd_direction(particles, grads, MarginalRBF(scale=4.0)), expected)


def test_pyro_cannot_take_it():
    assert not isinstance(SlicedRBF(), SteinKernel)


@pytest.mark.parametrize("size", [3, DENSE + 3])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("alike", [False, True])
def test_few_and_coincident_particles_are_finite(size, count, alike):
    particles, grads = draws(count, size).float()
    crowd = torch.full_like(particles, 1e3) if alike else particles
    found = svgd_direction(crowd, grads, SlicedRBF(generator=seeded(0)))
    assert bool(found.isfinite().all())
    assert found.abs().max() < 100


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf")])
def test_a_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(ValueError, match=r"SlicedRBF\.scale: expected a .*> 0"):
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


def test_above_the_dense_size_every_axis_has_a_random_sign():
    rows = draws(1, 1000)[0]
    first, second = (draw_rotation(1000, rows, seeded(number)).values for number in (1, 2))
    for signs in (first, second):
        assert set(signs.tolist()) == {-1.0, 1.0}
        assert abs(signs.mean().item()) < 0.15, "as often one as the other: five standard deviations"
    assert abs((first * second).mean().item()) < 0.15, "independent of another seed's"


def test_a_direction_without_variance_is_given_a_thousandth_of_the_mean():
    """Of so many particles on a line the shrinkage would leave less across it."""
    along = torch.randn(2200, 1, generator=seeded(0))
    root = whiten(along * torch.eye(50)[:1])
    across = torch.eye(50)[1:3]
    torch.testing.assert_close(root.apply(across), 1e-3**0.5 * across)
