"""Particles of a posterior that is known, and Pyro's own engine beside ours."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD, RBFSteinKernel
from pyro.infer.svgd import IMQSteinKernel
from pyro.nn import PyroModule
from torch import nn

from probattn.inference import EnsembleOptions, OptimizerOptions, ParticleEnsemble, SVGDDriver
from probattn.particles import LinearKernel, MarginalRBF, MedianRBF, PyroKernel

NOISE, PRIOR, ROWS = 0.5, 2.0, 40


class Regression(PyroModule):
    """Linear regression with known noise."""

    def __init__(self, size, num_data=None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.num_data = num_data

    def forward(self, batch):
        rows = len(batch["x"])
        chosen = None if self.num_data is None else torch.arange(rows)
        with pyro.plate("data", self.num_data or rows, subsample=chosen):
            mean = batch["x"] @ self.weight
            pyro.sample("y", dist.Normal(mean, NOISE), obs=batch["y"])
        return mean


def data(size):
    generator = torch.Generator().manual_seed(7)
    mixing = torch.eye(size, dtype=torch.float64) + 0.4
    x = torch.randn(ROWS, size, generator=generator, dtype=torch.float64) @ mixing
    noise = torch.randn(ROWS, generator=generator, dtype=torch.float64)
    return {"x": x, "y": x @ torch.linspace(-1, 1, size, dtype=torch.float64) + NOISE * noise}


def posterior(size):
    """Mean and covariance in closed form."""
    x, y = data(size)["x"], data(size)["y"]
    precision = x.T @ x / NOISE**2 + torch.eye(size, dtype=torch.float64) / PRIOR**2
    covariance = torch.linalg.inv(precision)
    return covariance @ (x.T @ y) / NOISE**2, covariance


def started(size, count=40, spread=0.3):
    """Particles wider than the posterior, and beside it."""
    mean, _ = posterior(size)
    generator = torch.Generator().manual_seed(1)
    starts = mean + 0.2 + spread * torch.randn(count, size, generator=generator, dtype=torch.float64)

    def initial(index):
        model = Regression(size)
        with torch.no_grad():
            model.weight.copy_(starts[index])
        return model

    return ParticleEnsemble(Regression(size), count, initial=initial)


def driver(ensemble, method, rate=1.0, **options):
    plain = OptimizerOptions("SGD", rate, weight_decay=0.0)
    return SVGDDriver(
        ensemble, method=method, optimizer=plain, max_grad_norm=None, scheduler=None, batch_size=ROWS,
        progress=False, cpu=True, **options,
    )  # fmt: skip


def settled(ensemble, method, steps=300, keep=None):
    """Particles after so many steps, or all those of every fourth step after ``keep``."""
    run, given, seen = driver(ensemble, method), data(ensemble.model.weight.shape[1]), []
    for step in range(steps):
        run.step(given)
        if keep is not None and step > keep and step % 4 == 0:
            seen.append(ensemble.named_particles()["weight"].clone())
    return torch.cat(seen) if seen else ensemble.named_particles()["weight"]


def covariance_of(particles):
    return torch.cov(particles.T, correction=0).reshape(particles.shape[1], -1)


def exact(**options):
    """The linear kernel's fixed point has a Gaussian's mean and covariance exactly (Liu and Wang 2018)."""
    return EnsembleOptions(kernel="linear", **{"prior": PRIOR, "step_size": 0.1, **options})


@pytest.mark.slow_but("1")
@pytest.mark.parametrize("size", [1, 2])
def test_particles_have_the_posteriors_mean_and_covariance_exactly(size):
    ensemble = started(size)
    driver(ensemble, exact()).fit(data(size), steps=300)
    particles = ensemble.named_particles()["weight"]
    mean, covariance = posterior(size)
    torch.testing.assert_close(particles.mean(dim=0), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(covariance_of(particles), covariance, atol=0, rtol=1e-3)


@pytest.mark.slow_but("median_rbf-0.8")
@pytest.mark.parametrize(("kernel", "low"), [("median_rbf", 0.8), ("sliced_rbf", 0.85)])
def test_other_kernels_have_them_nearly(kernel, low):
    particles = settled(started(2), EnsembleOptions(kernel=kernel, prior=PRIOR, step_size=0.1), steps=400)
    mean, covariance = posterior(2)
    root = torch.linalg.inv(torch.linalg.cholesky(covariance))
    whitened = root @ covariance_of(particles) @ root.T
    assert (root @ (particles.mean(dim=0) - mean)).abs().max() < 0.1
    assert (whitened.diagonal() > low).all() and (whitened.diagonal() < 1.15).all()
    assert abs(whitened[0, 1]) < 0.1


@pytest.mark.slow_but("1.0")
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_langevin_particles_are_draws_of_the_posterior(temperature):
    """Steps of size e make an autoregression, whose covariance is known: wider by (I - e H / 2)^-1."""
    step = 0.01
    method = EnsembleOptions("sgld", kernel="identity", prior=PRIOR, step_size=step, temperature=temperature)
    particles = settled(started(2, count=1000), method, steps=240, keep=140)
    mean, covariance = posterior(2)
    curvature = torch.linalg.inv(covariance) / ROWS
    wider = torch.linalg.inv(torch.eye(2, dtype=torch.float64) - step / 2 * curvature)
    expected = temperature * covariance @ wider
    deviation = covariance.diagonal().sqrt()
    assert ((particles.mean(dim=0) - mean).abs() < 0.08 * deviation).all()
    torch.testing.assert_close(covariance_of(particles), expected, rtol=0.08, atol=0)


@pytest.mark.slow
def test_spos_has_the_posteriors_variance():
    """Its Langevin part and its particles aim at the same posterior."""
    method = EnsembleOptions("spos", prior=PRIOR, step_size=0.01)
    particles = settled(started(2, count=50), method, steps=600, keep=200)
    mean, covariance = posterior(2)
    assert ((particles.mean(dim=0) - mean).abs() < 0.2 * covariance.diagonal().sqrt()).all()
    torch.testing.assert_close(covariance_of(particles), covariance, rtol=0.25, atol=0)


@pytest.mark.slow_but("options0-None-4.0-1.0")
@pytest.mark.parametrize(
    ("options", "num_data", "likelihood", "prior"),
    [
        ({"repulsion": 0.25}, None, 4.0, 4 / PRIOR**2),  # a temperature of a
        ({}, ROWS, 1.0, 1 / PRIOR**2),  # a plate that scales the batch to the data changes nothing
        ({"num_data": ROWS // 2}, None, 0.5, 1 / PRIOR**2),
        ({"prior": "uniform"}, None, 1.0, 0.0),
    ],
)
def test_options_scale_the_potential(options, num_data, likelihood, prior):
    ensemble = started(2)
    ensemble.model.num_data = num_data
    particles = settled(ensemble, exact(**options))
    x = data(2)["x"]
    precision = likelihood * x.T @ x / NOISE**2 + prior * torch.eye(2, dtype=torch.float64)
    expected = torch.linalg.inv(precision)
    torch.testing.assert_close(covariance_of(particles), expected, rtol=2e-3, atol=0)


def pyro_program(x, y):
    """The same regression with a latent weight, as Pyro's engine wants it."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2, dtype=torch.float64), PRIOR).to_event(1))
    with pyro.plate("data", len(x), dim=-1):
        pyro.sample("y", dist.Normal((weight * x).sum(dim=-1), NOISE), obs=y)


@pytest.mark.parametrize(
    ("kernel", "mode"),
    [
        (RBFSteinKernel(), "univariate"),
        (RBFSteinKernel(bandwidth_factor=3.0), "multivariate"),
        (IMQSteinKernel(), "univariate"),
        (MedianRBF(), "multivariate"),
        (MarginalRBF(), "univariate"),
        (LinearKernel(offset=30.0), "multivariate"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_steps_are_those_of_pyros_engine(kernel, mode):
    """Three steps from the same particles: the values returned, and where the particles are."""
    count, rate, given = 6, 1e-3, data(2)
    ensemble = started(2, count)
    pyro.clear_param_store()
    engine = SVGD(pyro_program, kernel, pyro.optim.SGD({"lr": rate}), count, max_plate_nesting=1, mode=mode)
    engine.guide._setup_prototype(given["x"], given["y"])
    pyro.param("svgd_particles", ensemble.named_particles()["weight"].flatten().clone())
    ours = kernel if not isinstance(kernel, (RBFSteinKernel, IMQSteinKernel)) else PyroKernel(kernel, mode)
    # Pyro's potential is a sum over data: a step of N makes ours one too.
    method = EnsembleOptions(prior=PRIOR, step_size=float(ROWS))
    run = driver(ensemble, method, rate, kernel=ours)
    for _ in range(3):
        expected = engine.step(given["x"], given["y"])
        assert run.step(given) == pytest.approx(expected, rel=1e-9)
        torch.testing.assert_close(
            run.get_named_particles()["weight"],
            engine.get_named_particles()["weight"].reshape(count, 2).detach(),
            rtol=1e-10,
            atol=1e-12,
        )
    pyro.clear_param_store()


def test_steps_outside_a_run_are_those_of_the_run():
    whole, stepped = started(2, 6), started(2, 6)
    method = EnsembleOptions("spos", prior=PRIOR, step_size=0.1)
    driver(whole, method, shuffle=False).fit(data(2), steps=3)
    by_hand = driver(stepped, method)
    for _ in range(3):
        assert by_hand.step(data(2), num_data=ROWS)["weight"] > 0
    torch.testing.assert_close(
        stepped.named_particles()["weight"], whole.named_particles()["weight"], rtol=1e-12, atol=0
    )
    with pytest.raises(ValueError, match=r"step: expected data of 40 rows as in the first step, got 3"):
        by_hand.step({name: value[:3] for name, value in data(2).items()})
