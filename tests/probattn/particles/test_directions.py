"""Directions against the equations pair by pair, Pyro's engine, gradient descent and the variance of the noise."""

import importlib.util
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD, RBFSteinKernel
from pyro.optim import SGD
from scipy import stats

from probattn.particles import (
    CosineKernel,
    FusedProjection,
    IdentityKernel,
    InverseMultiquadric,
    LinearKernel,
    MarginalRBF,
    MedianRBF,
    PyroKernel,
    UnsmoothedKernel,
    head_slices,
    sgld_direction,
    spos_direction,
    svgd_direction,
)

spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def seeded(number):
    return torch.Generator().manual_seed(number)


def case(count=7, size=5, dtype=torch.float64):
    particles = torch.randn(count, size, generator=seeded(0), dtype=torch.float64) * 1.5 + 3
    grads = torch.randn(count, size, generator=seeded(1), dtype=torch.float64)
    return particles.to(dtype), grads.to(dtype)


@pytest.fixture(params=sorted(reference.KERNELS))
def kernel(request):
    return reference.KERNELS[request.param]


@pytest.mark.parametrize("repulsion", [0.0, 1.0])
def test_without_smoothing_each_follows_its_own_gradient(kernel, repulsion):
    """Section C.6, the step between a penalty and SVGD: the repulsion of Eq. 4, the whole gradient of one's own."""
    ours, make = kernel
    particles, grads = case()
    expected = reference.svgd(particles, torch.zeros_like(grads), make, repulsion) - grads
    found = svgd_direction(particles, grads, UnsmoothedKernel(ours()), repulsion)
    assert (found - expected).abs().max() < 1e-10


@pytest.mark.parametrize("repulsion", [0.0, 0.01, 1.0, 3.0])
@pytest.mark.parametrize("count", [2, 6, 7])
def test_svgd_is_equation_4_pair_by_pair(kernel, repulsion, count):
    ours, make = kernel
    particles, grads = case(count)
    expected = reference.svgd(particles, grads, make, repulsion)
    found = svgd_direction(particles, grads, ours(), repulsion)
    assert (found - expected).abs().max() < 1e-10


def test_spos_is_equation_5_pair_by_pair(kernel):
    ours, make = kernel
    particles, grads = case()
    noise = torch.randn(particles.shape, generator=seeded(5), dtype=torch.float64)
    expected = reference.svgd(particles, grads, make, 0.3)
    for i in range(len(particles)):
        expected[i] += -grads[i] / 4.0 + (2 / (4.0 * 0.05)) ** 0.5 * noise[i]
    found = spos_direction(
        particles, grads, ours(), 0.3, langevin=1 / 4.0, step_size=0.05, generator=seeded(5)
    )
    assert (found - expected).abs().max() < 1e-10


def test_spos_is_svgd_and_the_weight_times_sgld_for_a_step_as_much_larger():
    particles, grads = case()
    noise = {"inverse_temperature": 3.0, "generator": seeded(5)}
    found = spos_direction(particles, grads, MedianRBF(), 0.3, langevin=0.2, step_size=0.05, **noise)
    noise["generator"] = seeded(5)
    expected = svgd_direction(particles, grads, MedianRBF(), 0.3)
    expected += 0.2 * sgld_direction(particles, grads, step_size=0.2 * 0.05, **noise)
    assert (found - expected).abs().max() < 1e-12


def test_sgld_moves_each_particle_alone():
    particles, grads = case()
    noise = torch.randn(particles.shape, generator=seeded(5), dtype=torch.float64)
    found = sgld_direction(particles, grads, inverse_temperature=4.0, step_size=0.05, generator=seeded(5))
    assert (found - (-grads + 10**0.5 * noise)).abs().max() < 1e-12


@pytest.mark.parametrize("sampler", ["spos", "sgld"])
@pytest.mark.parametrize(("temperature", "step"), [(0.5, 0.01), (20.0, 0.1)])
def test_a_step_adds_noise_of_variance_two_epsilon_over_b(sampler, temperature, step):
    """Chi-squared test of the variance, and Kolmogorov-Smirnov of the whole distribution."""
    particles, grads = case(8, 2500)
    options = {"inverse_temperature": temperature, "step_size": step, "generator": seeded(7)}
    if sampler == "spos":
        quiet = svgd_direction(particles, grads, MedianRBF()) - grads
        moved = spos_direction(particles, grads, MedianRBF(), langevin=1.0, **options)
    else:
        quiet, moved = -grads, sgld_direction(particles, grads, **options)
    noise = (step * (moved - quiet)).flatten() / (2 * step / temperature) ** 0.5
    low, high = stats.chi2.ppf([0.0005, 0.9995], noise.numel())
    assert low < noise.square().sum().item() < high
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3


def pyro_step(kernel, mode, start):
    """Particles after one step of Pyro's own engine, on a correlated Gaussian."""
    pyro.clear_param_store()
    precision = torch.tensor([[2.0, 0.7, 0.0], [0.7, 1.5, -0.4], [0.0, -0.4, 1.0]], dtype=torch.float64)

    def model():
        pyro.sample("x", dist.MultivariateNormal(torch.ones(3).double(), precision_matrix=precision))

    engine = SVGD(model, kernel, SGD({"lr": 0.25}), len(start), max_plate_nesting=0, mode=mode)
    with torch.no_grad():
        engine.guide()
        pyro.param("svgd_particles").unconstrained().copy_(start.flatten())
    engine.step()
    return pyro.get_param_store()["svgd_particles"].detach().view_as(start), (start - 1) @ precision


@pytest.mark.parametrize(
    ("kernel", "mode"),
    [
        (MedianRBF(), "multivariate"),
        (InverseMultiquadric(0.7), "multivariate"),
        (LinearKernel(), "multivariate"),
        (CosineKernel(), "multivariate"),
        (IdentityKernel(), "multivariate"),
        (IdentityKernel(), "univariate"),
        (MarginalRBF(), "univariate"),
        (PyroKernel(RBFSteinKernel(), "multivariate"), "multivariate"),
        (PyroKernel(RBFSteinKernel(), "univariate"), "univariate"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_step_of_pyros_engine_is_ours(kernel, mode):
    start = torch.randn(6, 3, generator=seeded(3), dtype=torch.float64) + 0.5
    found, grads = pyro_step(kernel, mode, start)
    expected = start + 0.25 * svgd_direction(start, grads, kernel)
    assert (found - expected).abs().max() < 1e-10
    assert (found - start).abs().max() > 1e-3


def test_the_paper_kernel_is_pyros_but_for_its_bandwidth():
    """One dimension: Pyro divides the median by log (M + 1), the paper by log M."""
    particles, grads = case(6, 1)
    squares = torch.nn.functional.pdist(particles).square().median().item()
    fixed = MedianRBF(squares / torch.tensor(7.0).log().item())
    found = svgd_direction(particles, grads, fixed)
    torch.testing.assert_close(found, svgd_direction(particles, grads, PyroKernel(RBFSteinKernel())))


class Attention(torch.nn.Module):
    """Four heads of size 3, fused, and a part that is no head."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(12, 36)
        self.out = torch.nn.Linear(12, 12)

    def forward(self, x):
        query, key, value = self.qkv(x).view(*x.shape[:2], 3, 4, 3).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2)).square().mean()


def train(direction):
    torch.manual_seed(0)
    net = Attention()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    slices = [head_slices(net, "qkv", 4, fused=FusedProjection(p)) for p in ("query", "key", "value")]
    losses = []
    for step in range(20):
        loss = net(torch.randn(3, 5, 12, generator=seeded(step)))
        optimizer.zero_grad()
        loss.backward()
        direction(slices)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), [parameter.detach() for parameter in net.parameters()]


def test_without_repulsion_and_kernel_it_is_gradient_descent_bit_for_bit():
    def descend(slices):
        for one in slices:
            phi = svgd_direction(one.particles(), one.gradients(), IdentityKernel(), 0.0)
            one.write(phi, step_size=4)

    plain, moved = train(lambda _: None), train(descend)
    assert torch.equal(plain[0], moved[0])
    assert all(torch.equal(*both) for both in zip(plain[1], moved[1], strict=True))
    assert plain[0][-1] < plain[0][0]


def test_repulsion_changes_the_run():
    def repel(slices):
        for one in slices:
            one.write(svgd_direction(one.particles(), one.gradients(), MedianRBF(), 0.01), step_size=4)

    assert not torch.equal(train(lambda _: None)[0], train(repel)[0])


def test_permuted_particles_have_permuted_directions(kernel):
    particles, grads = case()
    order = torch.randperm(7, generator=seeded(2))
    found = svgd_direction(particles[order], grads[order], kernel[0]())
    torch.testing.assert_close(found, svgd_direction(particles, grads, kernel[0]())[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coincident_particles_and_few_are_finite(kernel, dtype):
    ours = kernel[0]()
    particles, grads = case(6, 40, dtype)
    particles[1:4] = particles[0]  # the median of distances between different particles is 0 for most pairs
    crowds = {
        "three alike": particles,
        "all alike": particles[:1].expand(6, -1).contiguous(),
        "all alike, far": particles[:1].expand(6, -1) * 1e6,
        "all 0": torch.zeros_like(particles),
        "one": particles[:1],
        "two": particles[-2:],
        "two alike": particles[:2],
    }
    for name, crowd in crowds.items():
        found = svgd_direction(crowd, grads[: len(crowd)], ours)
        assert bool(found.isfinite().all()), name
        assert found.abs().max() < 100, name


@pytest.mark.parametrize("ours", [MedianRBF, MarginalRBF, InverseMultiquadric])
def test_coincident_particles_move_with_the_mean_gradient(ours):
    _, grads = case(6, 5, torch.float32)
    crowd = torch.full((6, 5), 0.3) * torch.arange(1, 6) * 1.7
    found = svgd_direction(crowd, grads, ours())
    torch.testing.assert_close(found, -grads.mean(dim=0).expand(6, 5))


@pytest.mark.parametrize("ours", [MedianRBF, MarginalRBF, InverseMultiquadric, LinearKernel])
def test_one_particle_descends(ours):
    particles, grads = case(1)
    torch.testing.assert_close(svgd_direction(particles, grads, ours()), -grads)


def test_low_precision_is_computed_in_float32():
    particles, grads = case(6, 50, torch.bfloat16)
    found = svgd_direction(particles, grads, MedianRBF())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, svgd_direction(particles.float(), grads.float(), MedianRBF()))
    with torch.autocast("cpu", torch.bfloat16):
        again = svgd_direction(particles.float(), grads.float(), MedianRBF())
    torch.testing.assert_close(again, found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, g: svgd_direction(p, g, MedianRBF(), -1.0),
            r"svgd_direction\.repulsion: expected a number >= 0, got -1.0",
        ),
        (
            lambda p, g: svgd_direction(p, g[:-1], MedianRBF()),
            r"expected one gradient per particle, \[7, 5\], got \[6, 5\]",
        ),
        (
            lambda p, g: svgd_direction(p, g.float(), MedianRBF()),
            "gradients like the particles .*float64.* got torch.float32",
        ),
        (
            lambda p, g: svgd_direction(p[0], g[0], MedianRBF()),
            r"expected particles \[M, N\].* got shape \[5\]",
        ),
        (lambda p, g: svgd_direction(p[:0], g[:0], MedianRBF()), r"M >= 1, got shape \[0, 5\]"),
        (
            lambda p, g: spos_direction(
                p, g, MedianRBF(), langevin=1.0, inverse_temperature=0.0, step_size=0.1
            ),
            r"spos_direction\.inverse_temperature: expected a number > 0, got 0.0",
        ),
        (
            lambda p, g: spos_direction(p, g, MedianRBF(), langevin=0.0, step_size=0.1),
            r"spos_direction\.langevin: expected a number > 0, got 0.0",
        ),
        (
            lambda p, g: sgld_direction(p, g, inverse_temperature=1.0, step_size=-0.1),
            r"sgld_direction\.step_size: expected a number > 0, got -0.1",
        ),
        (lambda *_: MedianRBF(0.0), r"MedianRBF\.bandwidth: expected a number > 0, got 0.0"),
        (lambda *_: MarginalRBF(-1.0), r"MarginalRBF\.bandwidth: expected"),
        (lambda *_: LinearKernel(bandwidth=float("nan")), r"LinearKernel\.bandwidth: .* finite .* got nan"),
        (lambda *_: InverseMultiquadric(0.0), r"InverseMultiquadric\.exponent: expected"),
        (lambda *_: CosineKernel(-1.0), r"CosineKernel\.offset: expected a number >= 0"),
        (
            lambda *_: PyroKernel(RBFSteinKernel(), "both"),
            "mode: expected one of 'multivariate', 'univariate', got 'both'",
        ),
        (
            lambda *_: CosineKernel(0.0).log_kernel_and_grad(torch.eye(2) - 0.6),
            "CosineKernel: Pyro's engine takes the logarithm .* falls to -0.*; raise its offset",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(*case())
    assert "\n" not in str(caught.value)


@pytest.mark.cuda
def test_on_a_gpu_it_is_the_same(kernel):
    particles, grads = case()
    found = svgd_direction(particles.cuda(), grads.cuda(), kernel[0]())
    torch.testing.assert_close(found.cpu(), svgd_direction(particles, grads, kernel[0]()))


def test_what_is_no_kernel_or_no_number_is_refused():
    with pytest.raises(TypeError, match=r"PyroKernel: expected a pyro.infer.svgd.SteinKernel, got str"):
        PyroKernel("rbf")
    with pytest.raises(TypeError, match=r"svgd_direction\.kernel: expected a kernel .* got 'median_rbf'"):
        svgd_direction(torch.ones(2, 2), torch.ones(2, 2), "median_rbf")
    with pytest.raises(TypeError, match=r"expected floating-point particles, got torch.int64"):
        svgd_direction(torch.ones(2, 2).long(), torch.ones(2, 2).long(), MedianRBF())
