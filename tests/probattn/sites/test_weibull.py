"""The Weibull posterior's functions against quadrature and arithmetic of thirty digits."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import mpmath as mp
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import probattn.sites
from probattn.distributions.log_normal import log_normal_kl, log_normal_loc
from probattn.distributions.log_space import cross_terms, gamma_terms
from probattn.sites.weibull import (
    Drawn,
    WeibullConstants,
    constant_slope,
    constant_surprise,
    constant_terms,
    draw_gradients,
    draw_terms,
    scaled_draw,
)

RHO, FLOOR, RATE = 1.5, 0.25, 0.75
POINTS = list(product((-6.0, -0.5, 1.0), (0.0, 0.5, 4.0), (0.125, 0.5, 0.9375), (-3.0, 0.5)))
"""log E[S], rise, u and log alpha."""
DTYPES = [torch.float64, torch.float32]
ULPS = 16
"""Units in the last place that a result may err by, of the largest number that enters it."""


@pytest.fixture(autouse=True)
def _thirty_digits():
    with mp.workdps(30):
        yield


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """The points' columns as maps ``[1, 1, 1, N]``."""
    return [torch.tensor(column, dtype=dtype).view(1, 1, 1, -1) for column in zip(*POINTS, strict=True)]


def concentration(mu: mp.mpf, rise: mp.mpf) -> mp.mpf:
    return mp.exp(mu) + FLOOR + RHO * rise


def log_scale(mu: mp.mpf, rise: mp.mpf) -> mp.mpf:
    return mu - mp.loggamma(1 + 1 / concentration(mu, rise))


def log_draw(mu: mp.mpf, rise: mp.mpf, u: mp.mpf) -> mp.mpf:
    return log_scale(mu, rise) + mp.log(-mp.log(u)) / concentration(mu, rise)


@cache
def divergence(mu: mp.mpf, k: mp.mpf, log_alpha: mp.mpf) -> mp.mpf:
    """KL of the Weibull distribution of mean exp(mu) from Gamma(alpha, RATE): its definition, integrated over log E."""
    alpha = mp.exp(log_alpha)
    location = mu - mp.loggamma(1 + 1 / k)

    def integrand(t: mp.mpf) -> mp.mpf:  # E = exp(t) is exponential, log S = location + t / k
        log_s = location + t / k
        log_q = mp.log(k) - log_s + t - mp.exp(t)
        log_p = alpha * mp.log(RATE) - mp.loggamma(alpha) + (alpha - 1) * log_s - RATE * mp.exp(log_s)
        return mp.exp(t - mp.exp(t)) * (log_q - log_p)

    return mp.quad(integrand, [-60, -20, -8, -3, 0, 1, 2, 4, 6])


def check(result: Tensor, truth: Callable[..., mp.mpf], scale: float = 0.0) -> None:
    """Within :data:`ULPS` of the truth at every point, relative to it or to ``scale``."""
    eps = torch.finfo(result.dtype).eps
    for value, point in zip(result.flatten().tolist(), POINTS, strict=True):
        exact = truth(*map(mp.mpf, point))
        assert abs(value - exact) <= ULPS * eps * max(abs(exact), scale), (point, value, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_draw_and_the_terms_of_its_divergence(dtype: torch.dtype) -> None:
    mu, rise, u, log_alpha = inputs(dtype)
    value, noise = torch.empty_like(mu), u.clone()
    terms = draw_terms(mu, rise, noise, value, WeibullConstants(RHO, FLOOR, RATE), True)
    assert terms is not None
    check(value, lambda mu, rise, u, _: log_draw(mu, rise, u), scale=8)
    check(noise, lambda _, __, u, ___: mp.log(-mp.log(u)), scale=1)
    alpha = log_alpha.exp()
    log_rate = torch.tensor(RATE, dtype=dtype).log()
    whole = alpha * terms[0] + terms[1] + gamma_terms(log_alpha, alpha, torch.lgamma(1 + alpha), log_rate)
    check(whole, lambda mu, rise, _, a: divergence(mu, concentration(mu, rise), a), scale=16)
    k = RHO * rise + mu.exp() + FLOOR
    location = mu - torch.lgamma(1 + 1 / k)
    both = cross_terms(RATE * mu.exp(), location, k, alpha)
    torch.testing.assert_close(both, alpha * terms[0] + terms[1])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_a_draw_and_of_its_divergence(dtype: torch.dtype, normalised: bool) -> None:
    mu, rise, u, log_alpha = inputs(dtype)
    pull, share = torch.linspace(-1, 1, mu.numel(), dtype=dtype).view_as(mu), torch.full_like(mu, 0.5)
    noise = torch.log(-torch.log(u))
    log_sum = weights = None
    if normalised:
        value = torch.empty_like(mu)
        draw_terms(mu, rise, u.clone(), value, WeibullConstants(RHO, FLOOR, RATE), False)
        log_sum, weights = value.logsumexp(dim=-1, keepdim=True), value.softmax(dim=-1)
    drawn = Drawn(mu, rise, noise if weights is None else weights, log_sum)
    centre = torch.zeros_like(mu[..., :1]) if normalised else None  # as if the gradient by W summed to 0
    grads = torch.empty_like(mu), torch.empty_like(mu)
    pulls = pull.clone(), share, log_alpha.exp()
    draw_gradients(drawn, pulls, centre, grads, WeibullConstants(RHO, FLOOR, RATE))

    def total(mu: mp.mpf, rise: mp.mpf, u: mp.mpf, log_alpha: mp.mpf, pull: mp.mpf) -> mp.mpf:
        k, alpha = concentration(mu, rise), mp.exp(log_alpha)
        terms = alpha * (mp.euler / k - log_scale(mu, rise)) + mp.log(k) + RATE * mp.exp(mu)
        return pull * log_draw(mu, rise, u) + terms / 2

    eps = torch.finfo(dtype).eps
    # The noise that follows from a weight has lost what log S has lost, times k.
    ulps = 64 * ULPS if normalised else ULPS
    for index, point in enumerate(POINTS):
        numbers = [mp.mpf(number) for number in (*point, pull.flatten()[index].item())]
        for order, grad in zip(((1, 0), (0, 1)), grads, strict=True):
            exact = mp.diff(lambda m, r, rest=numbers: total(m, r, *rest[2:]), tuple(numbers[:2]), order)
            error = abs(grad.flatten()[index].item() - exact)
            assert error <= ulps * eps * max(abs(exact), 8), (point, order, error)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_concentration(dtype: torch.dtype) -> None:
    mu, _, _, log_alpha = inputs(dtype)
    k = 2.5
    expected = pytest.approx(float(mp.euler / k + mp.loggamma(1 + 1 / mp.mpf(k))), rel=1e-15)
    assert constant_surprise(k) == expected
    terms, slope = constant_terms(mu, log_alpha, k, RATE)
    check(terms, lambda mu, _, __, a: divergence(mu, mp.mpf(k), a), scale=16)

    def closed(mu: mp.mpf, a: mp.mpf) -> mp.mpf:
        alpha = mp.exp(a)
        return (
            alpha * (constant_surprise(k) - mu)
            + RATE * mp.exp(mu)
            + mp.loggamma(alpha)
            - alpha * mp.log(RATE)
        )

    check(slope, lambda mu, _, __, a: mp.diff(closed, (mu, a), (0, 1)), scale=8)
    by_mean = constant_slope(mu, log_alpha.exp(), RATE)
    check(by_mean, lambda mu, _, __, a: mp.diff(closed, (mu, a), (1, 0)), scale=8)


def test_a_draw_without_logarithms() -> None:
    mu, rise, u, _ = inputs(torch.float32)
    constants = WeibullConstants(RHO, FLOOR + 0.25, RATE)
    bound = constants.inverse_bound(0.0)
    assert bound == 2.0 and WeibullConstants(RHO, 0.25, RATE).inverse_bound(0.1) is None
    scaled_draw(mu.exp(), rise, u, constants, bound)
    for value, (mu_, rise_, u_, _) in zip(u.flatten().tolist(), POINTS, strict=True):
        k = mp.exp(mu_) + FLOOR + 0.25 + RHO * rise_
        exact = mp.exp(mu_) * (-mp.log(u_)) ** (1 / k) / mp.gamma(1 + 1 / k)
        assert value == pytest.approx(float(exact), rel=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scale", "prior_scale"), [(0.5, 1.0), (1.5, 0.75)])
def test_the_log_normal_divergence(dtype: torch.dtype, scale: float, prior_scale: float) -> None:
    log_mean, log_alpha = torch.tensor([-3.0, 0.0, 2.0], dtype=dtype), 0.25
    loc = log_normal_loc(log_mean, scale)
    result = log_normal_kl(loc - log_alpha, scale, prior_scale)
    for mean, value in zip(log_mean.tolist(), result.tolist(), strict=True):
        q, p = stats.norm(mean - scale**2 / 2, scale), stats.norm(log_alpha, prior_scale)
        ends = q.mean() - 12 * scale, q.mean() + 12 * scale
        truth, _ = integrate.quad(
            lambda x, q=q, p=p: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), *ends, epsabs=1e-13
        )
        assert value == pytest.approx(truth, rel=ULPS * max(torch.finfo(dtype).eps, 1e-14))
    tensors = log_normal_kl(loc - log_alpha, *torch.tensor([scale, prior_scale], dtype=dtype))
    torch.testing.assert_close(tensors, result)


def test_no_other_file_of_the_sites_has_the_gamma_function_of_a_weibull() -> None:
    folder = Path(probattn.sites.__file__).parent
    using = {
        file.name
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and node.module == "probattn.distributions.special")
        or (isinstance(node, ast.Attribute) and node.attr in {"lgamma", "digamma", "polygamma"})
    }
    assert using == {"weibull.py", "triton_kernels.py"}  # kernels of a GPU hold the same formulas
