"""The gamma distribution against scipy and torch, with concentrations down to where floats end."""

import math

import pyro.distributions as pyro_distributions
import pytest
import torch
from scipy import special, stats
from torch.distributions import Gamma as TorchGamma
from torch.distributions import kl_divergence

from probattn.distributions import Gamma

DOUBLE = torch.float64


def _grid():
    concentration, rate = torch.meshgrid(
        torch.tensor([1e-3, 0.2, 1.0, 3.5, 50.0], dtype=DOUBLE),
        torch.tensor([1e-3, 1.0, 1e3], dtype=DOUBLE),
        indexing="ij",
    )
    return concentration, rate, stats.gamma(concentration.numpy(), scale=1 / rate.numpy())


@pytest.mark.parametrize("parametrisation", ["concentration", "log_concentration"])
def test_agrees_with_scipy(parametrisation):
    concentration, rate, oracle = _grid()
    location = concentration if parametrisation == "concentration" else concentration.log()
    ours = Gamma(**{parametrisation: location}, rate=rate)
    value = torch.rand((4, 5, 3), dtype=DOUBLE, generator=torch.Generator().manual_seed(0)) * 3 / rate
    for got, expected in (
        (ours.log_prob(value), oracle.logpdf(value.numpy())),
        (ours.cdf(value), oracle.cdf(value.numpy())),
        (ours.mean, oracle.mean()),
        (ours.variance, oracle.var()),
        (ours.stddev, oracle.std()),
        (ours.entropy(), oracle.entropy()),
        (ours.concentration, concentration),
        (ours.log_concentration, concentration.log()),
    ):
        torch.testing.assert_close(got, torch.as_tensor(expected), rtol=1e-8, atol=1e-9)


def _probability_transform(logs, log_concentration, rate):
    """P(S <= s) from log s, by the leading term of the series where s underflows."""
    concentration = math.exp(log_concentration)
    logs = logs.double().numpy() + math.log(rate)
    leading = concentration * logs - special.gammaln(1 + concentration)
    exact = special.gammainc(concentration, torch.from_numpy(logs).exp().numpy())
    return torch.where(torch.from_numpy(logs) < -30, torch.from_numpy(leading).exp(), torch.from_numpy(exact))


@pytest.mark.parametrize("log_concentration", [-60.0, -9.0, -2.0, 0.0, 1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_fit_the_distribution(log_concentration, dtype):
    torch.manual_seed(1)
    ours = Gamma(log_concentration=torch.tensor(log_concentration, dtype=dtype), rate=3.0)
    uniform = _probability_transform(ours.log_rsample((50_000,)), log_concentration, 3.0)
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-3


def test_goodness_of_fit_tells_a_wrong_concentration():
    torch.manual_seed(1)
    logs = Gamma(log_concentration=torch.tensor(-8.8), rate=3.0).log_rsample((50_000,))
    assert stats.kstest(_probability_transform(logs, -9.0, 3.0).numpy(), "uniform").pvalue < 1e-10


@pytest.mark.parametrize("log_concentration", [-1e4, -90.0, -20.0, 50.0])
def test_extreme_concentrations_stay_finite(log_concentration):
    torch.manual_seed(0)
    parameter = torch.full((1000,), log_concentration, requires_grad=True)
    ours = Gamma(log_concentration=parameter)
    draws, logs = ours.rsample(), ours.log_rsample()
    assert (draws > 0).all() and draws.isfinite().all() and logs.isfinite().all()
    assert (ours.concentration > 0).all() and (ours.mean > 0).all() and ours.log_variance.isfinite().all()
    log_density = ours.log_prob_of_log(torch.linspace(-50, 5, 1000))
    assert log_density.isfinite().all()
    for gradient in torch.autograd.grad(logs.mean() + log_density.mean(), parameter):
        assert gradient.isfinite().all()


def test_density_of_a_tiny_concentration():
    # alpha log beta and log Gamma(1 + alpha) vanish: log p = log alpha - log s - beta s.
    ours = Gamma(log_concentration=torch.tensor(-200.0), rate=2.0)
    value = torch.tensor([1e-30, 0.5, 3.0])
    torch.testing.assert_close(ours.log_prob(value), -200.0 - value.log() - 2 * value)


def test_gradient_of_log_draws_is_that_of_their_expectation():
    torch.manual_seed(0)
    for start in (-3.0, 0.5):
        parameter = torch.tensor(start, dtype=DOUBLE, requires_grad=True)
        logs = Gamma(log_concentration=parameter, rate=2.0).log_rsample((200_000,))
        (estimate,) = torch.autograd.grad(logs.mean(), parameter)
        concentration = math.exp(start)
        truth = concentration * special.polygamma(1, concentration)  # d E[log S] / d log alpha
        assert float(estimate) == pytest.approx(float(truth), rel=0.02)


def test_stands_in_for_torch_and_pyro():
    concentration, rate, _ = _grid()
    ours, theirs = Gamma(concentration, rate), TorchGamma(concentration, rate)
    assert isinstance(ours, pyro_distributions.Gamma) and isinstance(ours, TorchGamma)
    torch.testing.assert_close(ours.mode, theirs.mode)
    torch.testing.assert_close(
        kl_divergence(ours, TorchGamma(2.0, 3.0)), kl_divergence(theirs, TorchGamma(2.0, 3.0))
    )
    updated, _ = ours.conjugate_update(pyro_distributions.Gamma(2.0, 1.0))
    torch.testing.assert_close(updated.concentration, concentration + 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of concentration or log_concentration, got none"),
        ({"concentration": 1.0, "log_concentration": 0.0}, "got concentration and log_concentration"),
        ({"concentration": -1.0}, "parameter concentration"),
        ({"concentration": 1.0, "rate": 0.0}, "parameter rate"),
        ({"log_concentration": math.nan}, "parameter log_concentration"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Gamma(**arguments, validate_args=True)
