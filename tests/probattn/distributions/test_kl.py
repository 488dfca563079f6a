"""Divergences against quadrature, on every pair of classes, and through Pyro's masks, events and plates."""

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as pyro_distributions
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from scipy import integrate, special, stats
from torch.distributions import Gamma as TorchGamma
from torch.distributions import LogNormal as TorchLogNormal
from torch.distributions import Weibull as TorchWeibull
from torch.distributions import kl_divergence

from probattn.distributions import Gamma, LogNormal, Weibull

DOUBLE = torch.float64
WEIBULLS = [Weibull, TorchWeibull, pyro_distributions.Weibull]
GAMMAS = [Gamma, TorchGamma, pyro_distributions.Gamma]
LOG_NORMALS = [LogNormal, TorchLogNormal, pyro_distributions.LogNormal]


def _random_parameters(count, seed=0):
    """Concentration 0.05..50, log-scale -20..20, alpha 1e-4..50, rate 1e-3..1e3; the positive ones log-uniform."""
    generator = np.random.default_rng(seed)
    concentration = np.exp(generator.uniform(math.log(0.05), math.log(50), count))
    log_scale = generator.uniform(-20, 20, count)
    alpha = np.exp(generator.uniform(math.log(1e-4), math.log(50), count))
    rate = np.exp(generator.uniform(math.log(1e-3), math.log(1e3), count))
    return concentration, log_scale, alpha, rate


def _quadrature(concentration, log_scale, alpha, rate):
    """E[log q - log p] over z = log E, of density exp(z - e^z): S = lambda exp(z / k).

    The integrand is analytic and decays doubly exponentially on the right and exponentially on the left, so the
    trapezoid rule converges exponentially fast in its step.
    """
    z = np.linspace(-60, 8, 6801)
    log_s = log_scale[:, None] + z / concentration[:, None]
    log_q = np.log(concentration)[:, None] + z - np.exp(z)  # density of log S
    alpha, rate = alpha[:, None], rate[:, None]
    log_p = special.xlogy(alpha, rate) - special.gammaln(alpha) + alpha * log_s  # without -rate * S
    weight = z - np.exp(z)
    integrand = np.exp(weight) * (log_q - log_p) + rate * np.exp(weight + log_s)
    return integrate.trapezoid(integrand, z, axis=1)


def _relative_error(got, expected):
    return float(np.max(np.abs(np.asarray(got) - expected) / np.abs(expected)))


def test_against_quadrature_on_a_thousand_parameter_sets():
    parameters = _random_parameters(1000)
    concentration, log_scale, alpha, rate = (torch.from_numpy(parameter) for parameter in parameters)
    truth = _quadrature(*parameters)
    prior = Gamma(log_concentration=alpha.log(), rate=rate)
    by_scale = kl_divergence(Weibull(log_scale=log_scale, concentration=concentration), prior)
    assert _relative_error(by_scale, truth) < 1e-6
    log_mean = log_scale + torch.lgamma(1 + 1 / concentration)
    assert (
        _relative_error(kl_divergence(Weibull(log_mean=log_mean, concentration=concentration), prior), truth)
        < 1e-6
    )
    theirs = kl_divergence(TorchWeibull(log_scale.exp(), concentration), TorchGamma(alpha, rate))
    assert _relative_error(theirs, truth) < 1e-6


def test_the_quadrature_agrees_with_adaptive_integration_of_scipys_densities():
    generator = np.random.default_rng(1)
    for _ in range(10):
        shape, scale, alpha, rate = generator.uniform([0.7, 0.2, 0.3, 0.2], [5, 3, 4, 4])
        q, p = stats.weibull_min(shape, scale=scale), stats.gamma(alpha, scale=1 / rate)
        truth, _ = integrate.quad(
            lambda s, q=q, p=p: q.pdf(s) * (q.logpdf(s) - p.logpdf(s)), 0, q.isf(1e-15), limit=200
        )
        single = (np.array([value]) for value in (shape, math.log(scale), alpha, rate))
        assert _quadrature(*single)[0] == pytest.approx(truth, rel=1e-6)


def test_float32_divergence_stays_near_quadrature():
    parameters = _random_parameters(1000, seed=2)
    concentration, log_scale, alpha, rate = (torch.from_numpy(parameter).float() for parameter in parameters)
    got = kl_divergence(Weibull(log_scale=log_scale, concentration=concentration), Gamma(alpha, rate))
    assert got.dtype == torch.float32
    inside = got.isfinite().numpy()  # exp(log_mean) may leave float32
    assert inside.mean() > 0.99
    truth = _quadrature(
        *(parameter.double().numpy() for parameter in (concentration, log_scale, alpha, rate))
    )
    error = np.abs(got.double().numpy() - truth) / np.maximum(np.abs(truth), 1)
    assert error[inside].max() < 2e-5


@pytest.mark.parametrize("weibull", WEIBULLS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_every_weibull_meets_every_gamma(weibull, gamma):
    concentration = torch.tensor([0.4, 1.0, 9.0], dtype=DOUBLE)
    scale = torch.tensor([[0.5], [2.0]], dtype=DOUBLE)
    alpha, rate = torch.tensor([0.01, 1.0, 4.0], dtype=DOUBLE), torch.tensor(1.5, dtype=DOUBLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an ambiguous dispatch warns
        got = kl_divergence(weibull(scale, concentration), gamma(alpha, rate))
    arguments = torch.broadcast_tensors(concentration, scale.log(), alpha, rate)
    truth = _quadrature(*(argument.flatten().numpy() for argument in arguments))
    assert got.shape == (2, 3)
    assert _relative_error(got.flatten(), truth) < 1e-8


@pytest.mark.parametrize("left", LOG_NORMALS)
@pytest.mark.parametrize("right", LOG_NORMALS)
def test_every_log_normal_meets_every_log_normal(left, right):
    loc, scale = torch.tensor([-1.0, 0.0, 3.0], dtype=DOUBLE), torch.tensor([[0.2], [1.5]], dtype=DOUBLE)
    other = torch.tensor(0.3, dtype=DOUBLE), torch.tensor(0.8, dtype=DOUBLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kl_divergence(left(loc, scale), right(*other))
    y = np.linspace(-30, 30, 20001)
    q = stats.norm(*(parameter.reshape(-1, 1).numpy() for parameter in torch.broadcast_tensors(loc, scale)))
    truth = integrate.trapezoid(q.pdf(y) * (q.logpdf(y) - stats.norm(0.3, 0.8).logpdf(y)), y, axis=1)
    assert got.shape == (2, 3)
    assert _relative_error(got.flatten(), truth) < 1e-8


def test_an_expanded_pair_has_the_expanded_shape_and_the_same_values():
    posterior, prior = (
        Weibull(log_mean=torch.zeros(()), concentration=2.0),
        Gamma(log_concentration=torch.zeros(3)),
    )
    single = kl_divergence(posterior, prior)
    expanded = kl_divergence(posterior.expand((4, 3)), prior.expand((2, 1, 3)))
    assert expanded.shape == (2, 4, 3)
    assert torch.equal(expanded, single.expand(2, 4, 3))
    wide = kl_divergence(LogNormal(0.0, 1.0).expand((5,)), LogNormal(1.0, 1.0).expand((2, 1)))
    torch.testing.assert_close(wide, torch.full((2, 5), 0.5))


def test_special_functions_of_the_prior_run_on_its_own_shape(monkeypatch):
    seen = []
    original = torch.Tensor.lgamma_
    monkeypatch.setattr(torch.Tensor, "lgamma_", lambda self: seen.append(self.numel()) or original(self))
    posterior = Weibull(log_mean=torch.zeros(2, 3, 4, 5, dtype=DOUBLE), concentration=2.0)
    prior = Gamma(log_concentration=torch.zeros(2, 3, 1, 5, dtype=DOUBLE)).expand((2, 3, 4, 5))
    valid = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    kl_divergence(posterior.mask(valid).to_event(3), prior.mask(valid).to_event(3))
    assert sorted(set(seen)) == [1, 30]  # one concentration; the unexpanded prior


def test_divergence_from_an_exponential_to_itself_is_zero():
    # Weibull(1, 1/b) and Gamma(1, b) are the same distribution.
    rate = torch.tensor([0.1, 1.0, 7.0], dtype=DOUBLE)
    divergence = kl_divergence(Weibull(1 / rate, 1.0), Gamma(1.0, rate))
    torch.testing.assert_close(divergence, torch.zeros(3, dtype=DOUBLE), atol=1e-14, rtol=0)


def _site(batch=3):
    generator = torch.Generator().manual_seed(0)
    shape = (batch, 2, 4, 5)
    log_mean = torch.randn(shape, generator=generator, dtype=DOUBLE).log_softmax(-1).requires_grad_()
    concentration = (0.3 + torch.rand(shape, generator=generator, dtype=DOUBLE)).requires_grad_()
    log_alpha = (
        torch.randn((batch, 2, 1, 5), generator=generator, dtype=DOUBLE).log_softmax(-1).requires_grad_()
    )
    mask = torch.rand((batch, 1, 4, 5), generator=generator) > 0.4
    return log_mean, concentration, log_alpha, mask


def _expected_site_kl(log_mean, concentration, log_alpha, mask):
    scale = (log_mean - torch.lgamma(1 + 1 / concentration)).exp()
    elementwise = kl_divergence(TorchWeibull(scale, concentration), TorchGamma(log_alpha.exp(), 1.0))
    return torch.where(mask, elementwise, 0.0).sum((1, 2, 3))


def test_masked_events():
    log_mean, concentration, log_alpha, mask = _site()
    posterior = Weibull(log_mean=log_mean, concentration=concentration)
    prior = Gamma(log_concentration=log_alpha).expand(posterior.batch_shape)
    truth = _expected_site_kl(log_mean, concentration, log_alpha, mask)
    arguments = (log_mean, concentration, log_alpha)
    divergence = kl_divergence(posterior.mask(mask).to_event(3), prior.mask(mask).to_event(3))
    torch.testing.assert_close(divergence, truth)
    gradients = torch.autograd.grad(divergence.sum(), arguments)
    torch.testing.assert_close(gradients, torch.autograd.grad(truth.sum(), arguments))


def test_sites_in_a_plate_enter_the_elbo_by_their_divergence():
    log_mean, concentration, log_alpha, mask = _site()

    def model():
        with pyro.plate("data", 12, subsample=torch.arange(3)):
            prior = Gamma(log_concentration=log_alpha).expand((3, 2, 4, 5))
            pyro.sample("attention", prior.mask(mask).to_event(3))

    def guide():
        with pyro.plate("data", 12, subsample=torch.arange(3)):
            posterior = Weibull(log_mean=log_mean, concentration=concentration)
            pyro.sample("attention", posterior.mask(mask).to_event(3))

    loss = TraceMeanField_ELBO().differentiable_loss(model, guide)
    torch.testing.assert_close(
        loss, 12 / 3 * _expected_site_kl(log_mean, concentration, log_alpha, mask).sum()
    )


def test_a_plate_expands_scalar_sites():
    def model():
        with pyro.plate("outer", 4, dim=-2), pyro.plate("inner", 3, dim=-1):
            pyro.sample("s", Gamma(2.0, 1.0))

    def guide():
        with pyro.plate("outer", 4, dim=-2), pyro.plate("inner", 3, dim=-1):
            return pyro.sample("s", Weibull(1.0, 2.0))

    assert guide().shape == (4, 3)
    loss = TraceMeanField_ELBO().loss(model, guide)
    assert loss == pytest.approx(
        12 * float(kl_divergence(TorchWeibull(1.0, 2.0), TorchGamma(2.0, 1.0))), rel=1e-5
    )


def test_gradients_reach_torchs_own_parameters():
    scale = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    concentration = torch.tensor(1.3, dtype=DOUBLE, requires_grad=True)
    alpha = torch.tensor(0.4, dtype=DOUBLE, requires_grad=True)
    rate = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)

    def divergence(*arguments):
        return kl_divergence(TorchWeibull(*arguments[:2]), TorchGamma(*arguments[2:]))

    assert torch.autograd.gradcheck(divergence, (scale, concentration, alpha, rate))
