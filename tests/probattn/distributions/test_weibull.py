"""The Weibull distribution against scipy, mpmath and torch."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Weibull as TorchWeibull

from probattn.distributions import Weibull

DOUBLE = torch.float64


def _grid():
    scale, shape = torch.meshgrid(
        torch.tensor([1e-3, 0.4, 1.0, 30.0], dtype=DOUBLE),
        torch.tensor([0.3, 0.9, 1.0, 1.7, 12.0, 40.0], dtype=DOUBLE),
        indexing="ij",
    )
    return scale, shape, stats.weibull_min(shape.numpy(), scale=scale.numpy())


@pytest.mark.parametrize("parametrisation", ["scale", "log_scale", "log_mean"])
def test_agrees_with_scipy(parametrisation):
    scale, shape, oracle = _grid()
    location = {"scale": scale, "log_scale": scale.log(), "log_mean": torch.from_numpy(oracle.mean()).log()}[
        parametrisation
    ]
    ours = Weibull(**{parametrisation: location}, concentration=shape)
    probability = torch.tensor([0.01, 0.3, 0.5, 0.9, 0.999], dtype=DOUBLE)[:, None, None]
    value = torch.from_numpy(oracle.ppf(probability.numpy()))
    for got, expected in (
        (ours.icdf(probability), value),
        (ours.cdf(value), oracle.cdf(value.numpy())),
        (ours.log_prob(value), oracle.logpdf(value.numpy())),
        (ours.mean, oracle.mean()),
        (ours.stddev, oracle.std()),
        (ours.variance, oracle.var()),
        (ours.entropy(), oracle.entropy()),
        (ours.scale, scale),
        (ours.log_scale, scale.log()),
        (ours.log_mean, np.log(oracle.mean())),
    ):
        torch.testing.assert_close(got, torch.as_tensor(expected), rtol=1e-7, atol=1e-9)


def test_agrees_with_torch():
    scale, shape, _ = _grid()
    ours, theirs = Weibull(scale, shape), TorchWeibull(scale, shape)
    value = theirs.sample((3,))
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.cdf(value), theirs.cdf(value))
    torch.testing.assert_close(ours.mean, theirs.mean)
    inside = shape > 1
    torch.testing.assert_close(ours.mode[inside], theirs.mode[inside])
    assert (ours.mode[~inside] == 0).all()


def test_mode_is_where_the_density_is_flat():
    ours = Weibull(torch.tensor([0.5, 2.0], dtype=DOUBLE), torch.tensor([1.3, 6.0], dtype=DOUBLE))
    mode = ours.mode.requires_grad_()
    (slope,) = torch.autograd.grad(ours.log_prob(mode).sum(), mode)
    torch.testing.assert_close(slope, torch.zeros(2, dtype=DOUBLE), atol=1e-10, rtol=0)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 1.0, 2.5, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_fit_the_distribution(concentration, dtype):
    torch.manual_seed(int(concentration * 100))
    ours = Weibull(log_scale=torch.tensor(0.7, dtype=dtype), concentration=concentration)
    logs = ours.log_rsample((50_000,)).double()
    gumbel = -concentration * (logs - 0.7)  # -log E
    assert stats.kstest(gumbel.numpy(), "gumbel_r").pvalue > 1e-3
    if concentration >= 0.5:
        draws = ours.rsample((50_000,)).double().numpy()
        assert stats.kstest(draws, stats.weibull_min(concentration, scale=math.exp(0.7)).cdf).pvalue > 1e-3


def test_goodness_of_fit_tells_truncated_noise():
    uniform = 0.1 + 0.8 * torch.rand(50_000, generator=torch.Generator().manual_seed(0))
    assert stats.kstest(-torch.log(-torch.log(uniform)).numpy(), "gumbel_r").pvalue < 1e-10


def test_draws_in_half_precision_fit_up_to_their_rounding():
    torch.manual_seed(0)
    ours = Weibull(log_scale=torch.zeros((), dtype=torch.float16), concentration=1.0)
    distance = stats.kstest(ours.rsample((50_000,)).double().numpy(), stats.expon.cdf).statistic
    assert distance < 0.01


def test_draws_are_independent_along_shared_parameters():
    torch.manual_seed(0)
    draws = Weibull(1.0, 2.0).expand((20_000, 2)).rsample()
    assert abs(float(torch.corrcoef(draws.T)[0, 1])) < 0.03


def test_pathwise_gradient_is_that_of_the_expectation():
    torch.manual_seed(0)
    log_scale = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)
    concentration = torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)
    ours = Weibull(log_scale=log_scale, concentration=concentration)
    estimates = torch.autograd.grad(ours.rsample((400_000,)).mean(), (log_scale, concentration))
    truths = torch.autograd.grad(ours.mean, (log_scale, concentration))
    torch.testing.assert_close(estimates, truths, rtol=0.02, atol=0.0)


@pytest.mark.parametrize("log_scale", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_parameters_stay_finite(log_scale, concentration, dtype):
    torch.manual_seed(0)
    location = torch.full((1000,), log_scale, dtype=dtype, requires_grad=True)
    shape = torch.full((1000,), min(concentration, 6e4), dtype=dtype, requires_grad=True)
    ours = Weibull(log_scale=location, concentration=shape)
    draws, logs = ours.rsample(), ours.log_rsample()
    assert (draws > 0).all() and draws.isfinite().all() and logs.isfinite().all()
    assert ours.log_prob_of_log(logs).isfinite().all()
    for name in ("mean", "stddev", "variance", "scale"):
        value = getattr(ours, name)
        assert (value > 0).all() and value.isfinite().all()
    assert ours.entropy().isfinite().all()
    assert ours.log_variance.isfinite().all()
    assert ours.log_mean.isfinite().all()
    for gradient in torch.autograd.grad(
        draws.log().mean() + logs.mean(), (location, shape), materialize_grads=True
    ):
        assert gradient.isfinite().all()


def test_log_scale_is_kept_where_the_scale_is_not_a_number_any_more():
    ours = Weibull(log_scale=torch.tensor([-1e4, 1e4]), concentration=4.0)
    assert torch.equal(ours.log_scale, torch.tensor([-1e4, 1e4]))
    centred = ours.log_rsample((2000,)) - ours.log_scale
    assert (centred.abs() < 10).all()


def test_variance_keeps_its_digits_at_high_concentration():
    for concentration in (7.5, 8.5, 30.0, 100.0, 1e4):
        ours = Weibull(torch.tensor(1.0), concentration)  # float32
        with mpmath.workdps(60):
            x = 1 / mpmath.mpf(concentration)
            truth = mpmath.gamma(1 + 2 * x) - mpmath.gamma(1 + x) ** 2
        assert float(ours.variance) == pytest.approx(float(truth), rel=3e-5)


def test_log_mean_is_kept_exactly_and_computed_once():
    log_mean = torch.randn(3)
    assert torch.equal(Weibull(log_mean=log_mean, concentration=0.3).expand((2, 3)).log_mean[1], log_mean)
    ours = Weibull(log_scale=log_mean, concentration=0.3)
    expanded = ours.expand((2, 3))
    assert expanded.log_mean.data_ptr() == ours.log_mean.data_ptr()


def test_gradients_pass_through_what_is_computed_lazily():
    log_mean = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    concentration = torch.full((3,), 2.0, dtype=DOUBLE, requires_grad=True)
    ours = Weibull(log_mean=log_mean, concentration=concentration)
    with torch.no_grad():
        ours.sample()  # computes log_scale
    gradients = torch.autograd.grad(ours.log_scale.sum(), (log_mean, concentration))
    assert torch.equal(gradients[0], torch.ones(3, dtype=DOUBLE))
    torch.testing.assert_close(gradients[1], torch.digamma(torch.full((3,), 1.5, dtype=DOUBLE)) / 4)


def test_cdf_and_icdf_at_the_ends():
    ours = Weibull(2.0, 3.0, validate_args=False)
    assert torch.equal(ours.icdf(torch.tensor([0.0, 1.0])), torch.tensor([0.0, math.inf]))
    assert torch.equal(ours.cdf(torch.tensor([0.0, math.inf])), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concentration": 1.0}, "exactly one of scale or log_scale or log_mean, got none"),
        ({"scale": 1.0, "log_mean": 0.0, "concentration": 1.0}, "got scale and log_mean"),
        ({"scale": 1.0}, "Weibull expected a concentration beside scale"),
        ({"scale": -1.0, "concentration": 1.0}, "parameter scale"),
        ({"scale": 1.0, "concentration": 0.0}, "parameter concentration"),
        ({"log_scale": math.nan, "concentration": 1.0}, "parameter log_scale"),
        ({"log_mean": math.nan, "concentration": 1.0}, "parameter log_mean"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Weibull(**arguments, validate_args=True)
