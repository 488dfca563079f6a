"""The log-normal distribution against scipy and torch."""

import math

import pyro.distributions as pyro_distributions
import pytest
import torch
from scipy import stats
from torch.distributions import LogNormal as TorchLogNormal

from probattn.distributions import LogNormal

DOUBLE = torch.float64


def test_agrees_with_scipy():
    loc = torch.tensor([-3.0, 0.0, 2.0], dtype=DOUBLE)[:, None]
    scale = torch.tensor([0.01, 0.5, 1.0, 2.0], dtype=DOUBLE)
    ours, oracle = LogNormal(loc, scale), stats.lognorm(scale.numpy(), scale=loc.exp().numpy())
    probability = torch.tensor([0.01, 0.5, 0.99], dtype=DOUBLE)[:, None, None]
    value = torch.from_numpy(oracle.ppf(probability.numpy()))
    for got, expected in (
        (ours.icdf(probability), value),
        (ours.cdf(value), oracle.cdf(value.numpy())),
        (ours.log_prob(value), oracle.logpdf(value.numpy())),
        (ours.mean, oracle.mean()),
        (ours.variance, oracle.var()),
        (ours.stddev, oracle.std()),
        (ours.entropy(), oracle.entropy()),
        (ours.mode, TorchLogNormal(loc, scale).mode),
    ):
        torch.testing.assert_close(got, torch.as_tensor(expected), rtol=1e-7, atol=1e-9)


def test_draws_fit_the_distribution():
    torch.manual_seed(0)
    ours = LogNormal(torch.tensor(-1.0), 0.7)
    assert stats.kstest(ours.log_rsample((50_000,)).numpy(), stats.norm(-1.0, 0.7).cdf).pvalue > 1e-3
    result = stats.kstest(ours.sample((50_000,)).numpy(), stats.lognorm(0.7, scale=math.exp(-1)).cdf).pvalue
    assert result > 1e-3


@pytest.mark.parametrize("loc", [-1e4, 1e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_parameters_stay_finite(loc, dtype):
    ours = LogNormal(torch.full((100,), loc, dtype=dtype), 1.0)
    for value in (ours.sample(), ours.rsample(), ours.mean, ours.variance, ours.stddev):
        assert (value > 0).all() and value.isfinite().all()
    logs = ours.log_rsample()
    assert logs.isfinite().all() and ours.log_prob_of_log(logs).isfinite().all()


def test_pathwise_gradient():
    torch.manual_seed(0)
    loc = torch.tensor(0.2, dtype=DOUBLE, requires_grad=True)
    scale = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)
    ours = LogNormal(loc, scale)
    estimates = torch.autograd.grad(ours.rsample((400_000,)).mean(), (loc, scale))
    torch.testing.assert_close(estimates, torch.autograd.grad(ours.mean, (loc, scale)), rtol=0.02, atol=0.0)


def test_stands_in_for_pyro():
    ours = LogNormal(torch.zeros(3), 1.0)
    assert isinstance(ours, pyro_distributions.LogNormal)
    assert torch.equal(ours.loc, torch.zeros(3)) and torch.equal(ours.scale, torch.ones(3))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="scale"):
        LogNormal(torch.zeros(3), -1.0, validate_args=True)
    with pytest.raises(ValueError, match="loc"):
        LogNormal(math.nan, 1.0, validate_args=True)
