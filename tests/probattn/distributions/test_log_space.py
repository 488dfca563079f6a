"""Elementwise functions in log space: values, gradients, precision, extremes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from scipy import stats

from probattn.distributions import (
    finite_exp,
    log_gamma_1p_reciprocal,
    log_standard_exponential,
    log_weibull_sample,
    weibull_gamma_kl,
)

DOUBLE = torch.float64
HALVES = [torch.float16, torch.bfloat16]


def _reference_kl(log_mean, log_scale, concentration, log_alpha, rate):
    """The formula of the paper, in linear space and one step at a time."""
    gamma = 0.57721566490153286
    alpha = log_alpha.exp()
    return (
        gamma * alpha / concentration
        - alpha * log_scale
        + concentration.log()
        + rate * log_mean.exp()
        - gamma
        - 1
        - alpha * torch.as_tensor(rate, dtype=log_alpha.dtype).log()
        + torch.lgamma(alpha)
    )


def _arguments(shapes, dtype=DOUBLE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(shape, dtype=DOUBLE, generator=generator) for shape in shapes]
    draws[2] = draws[2].abs() + 0.2  # concentration
    draws[4] = draws[4].abs() + 0.5  # rate
    return [draw.to(dtype).requires_grad_() for draw in draws]


SHAPES = [
    pytest.param([(2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 1, 5), ()], id="contextual prior"),
    pytest.param([(2, 4, 5), (2, 4, 5), (), (), ()], id="constant concentration and prior"),
    pytest.param([(3,), (2, 1), (3,), (2, 3), (2, 1)], id="everything broadcast"),
    pytest.param([(), (), (), (), ()], id="scalars"),
    pytest.param([(1, 3), (2, 1), (1, 1), (4, 1, 1), (3,)], id="no argument of the full shape"),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_kl_is_the_formula_of_the_paper_with_its_gradients(shapes):
    arguments = _arguments(shapes)
    result, expected = weibull_gamma_kl(*arguments), _reference_kl(*arguments)
    torch.testing.assert_close(result, expected)
    weight = torch.randn(result.shape, dtype=DOUBLE)
    gradients = torch.autograd.grad((weight * result).sum(), arguments)
    for gradient, truth in zip(
        gradients, torch.autograd.grad((weight * expected).sum(), arguments), strict=True
    ):
        torch.testing.assert_close(gradient, truth)


@pytest.mark.parametrize("shapes", SHAPES)
def test_kl_gradcheck_twice(shapes):
    arguments = _arguments(shapes)
    assert torch.autograd.gradcheck(weibull_gamma_kl, arguments)
    assert torch.autograd.gradgradcheck(weibull_gamma_kl, arguments, fast_mode=True)


@pytest.mark.parametrize("wanted", range(5))
def test_kl_gives_a_gradient_to_one_argument_alone(wanted):
    arguments = [a.detach() for a in _arguments([(3, 4), (3, 4), (3, 4), (1, 4), ()])]
    arguments[wanted].requires_grad_()
    (gradient,) = torch.autograd.grad(weibull_gamma_kl(*arguments).sum(), arguments[wanted])
    (truth,) = torch.autograd.grad(_reference_kl(*arguments).sum(), arguments[wanted])
    torch.testing.assert_close(gradient, truth)


def test_kl_leaves_its_arguments_alone():
    arguments = _arguments([(3, 4), (3, 4), (3, 4), (1, 4), ()])
    copies = [argument.detach().clone() for argument in arguments]
    divergence = weibull_gamma_kl(*arguments).sum()
    first = torch.autograd.grad(divergence, arguments, retain_graph=True)
    second = torch.autograd.grad(divergence, arguments)
    for argument, copy, one, two in zip(arguments, copies, first, second, strict=True):
        assert torch.equal(argument, copy)
        assert torch.equal(one, two)


def test_kl_takes_a_number_for_the_rate():
    arguments = _arguments([(3,)] * 5)[:4]
    tensor_rate = weibull_gamma_kl(*arguments, torch.tensor(2.0, dtype=DOUBLE))
    assert torch.equal(weibull_gamma_kl(*arguments, 2.0), tensor_rate)


def test_functions_work_under_torch_func():
    value = torch.tensor(0.7, dtype=DOUBLE)
    gradient = torch.func.grad(log_gamma_1p_reciprocal)(value)
    torch.testing.assert_close(gradient, -torch.digamma(1 + 1 / value) / value**2)


def test_kl_of_a_vanishing_prior_concentration():
    # alpha underflows in float32; only log Gamma(alpha) ~ -log alpha is left of it.
    zero, log_alpha = torch.zeros(()), torch.tensor([-1e4, -500.0], requires_grad=True)
    divergence = weibull_gamma_kl(zero, zero, torch.ones(()), log_alpha, 1.0)
    torch.testing.assert_close(divergence, -log_alpha - 0.57721566 - 1 + 1)
    assert torch.equal(torch.autograd.grad(divergence.sum(), log_alpha)[0], -torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 50.0])
def test_kl_and_gradients_are_finite_for_extreme_scores(dtype, concentration):
    log_mean = torch.tensor([-2e4, -1e4, -100.0, 0.0]).to(dtype).requires_grad_()
    shape = torch.full((4,), concentration, dtype=dtype, requires_grad=True)
    log_alpha = torch.tensor([-2e4, -10.0, 0.0, 0.0]).to(dtype).requires_grad_()
    log_scale = log_mean - log_gamma_1p_reciprocal(shape)
    divergence = weibull_gamma_kl(log_mean, log_scale, shape, log_alpha, 1.0)
    assert divergence.isfinite().all()
    assert divergence.dtype == dtype
    for gradient in torch.autograd.grad(divergence.float().sum(), (log_mean, shape, log_alpha)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_errs_by_its_own_rounding_only(dtype):
    arguments = _arguments([(50, 4), (50, 4), (50, 4), (1, 4), ()], dtype)
    exact = [argument.detach().double().requires_grad_() for argument in arguments]
    eps = torch.finfo(dtype).eps
    result, truth = weibull_gamma_kl(*arguments), weibull_gamma_kl(*exact)
    assert ((result.double() - truth).abs() / truth.abs().clamp(min=1e-2)).max() <= eps
    gradients = torch.autograd.grad(result.sum(), arguments)
    for gradient, wanted in zip(gradients, torch.autograd.grad(truth.sum(), exact), strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), wanted, rtol=2 * eps, atol=2 * eps)
    shape = arguments[2]
    torch.testing.assert_close(
        log_gamma_1p_reciprocal(shape).double(), log_gamma_1p_reciprocal(shape.double()), rtol=eps, atol=1e-7
    )


def test_float32_stays_near_float64():
    arguments = _arguments([(6, 40, 30), (6, 40, 30), (6, 40, 30), (6, 1, 30), ()], torch.float32)
    exact = [argument.detach().double().requires_grad_() for argument in arguments]
    torch.testing.assert_close(
        weibull_gamma_kl(*arguments).double(), weibull_gamma_kl(*exact), rtol=1e-5, atol=1e-5
    )
    gradients = torch.autograd.grad(weibull_gamma_kl(*arguments).mean(), arguments)
    truths = torch.autograd.grad(weibull_gamma_kl(*exact).mean(), exact)
    for gradient, truth in zip(gradients, truths, strict=True):
        torch.testing.assert_close(gradient.double(), truth, rtol=1e-5, atol=1e-8)


@settings(max_examples=50, deadline=None)
@given(mutually_broadcastable_shapes(num_shapes=5, max_dims=4, max_side=3, min_side=0))
def test_kl_broadcasts_like_its_formula(shapes):
    arguments = _arguments(shapes.input_shapes)
    result = weibull_gamma_kl(*arguments)
    assert result.shape == shapes.result_shape
    gradients = torch.autograd.grad(result.sum(), arguments)
    truths = torch.autograd.grad(_reference_kl(*arguments).sum(), arguments)
    for argument, gradient, truth in zip(arguments, gradients, truths, strict=True):
        assert gradient.shape == argument.shape
        torch.testing.assert_close(gradient, truth)


@settings(max_examples=50, deadline=None)
@given(mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3), st.integers(0, 2**31))
def test_sample_broadcasts_like_its_formula(shapes, seed):
    log_scale, noise, concentration = _arguments([*shapes.input_shapes, (), ()], seed=seed)[:3]
    arguments = (log_scale, concentration, noise)
    result = log_weibull_sample(*arguments)
    expected = log_scale + noise / concentration
    torch.testing.assert_close(result, expected)
    truths = torch.autograd.grad(expected.sum(), arguments)
    for gradient, truth in zip(torch.autograd.grad(result.sum(), arguments), truths, strict=True):
        torch.testing.assert_close(gradient, truth)


def test_sample_gradcheck_twice():
    log_scale, noise, concentration, _, _ = _arguments([(3, 4), (3, 4), (1, 4), (), ()])
    assert torch.autograd.gradcheck(log_weibull_sample, (log_scale, concentration, noise))
    assert torch.autograd.gradgradcheck(log_weibull_sample, (log_scale, concentration, noise), fast_mode=True)
    fixed = noise.detach()
    assert torch.autograd.gradcheck(lambda a, k: log_weibull_sample(a, k, fixed), (log_scale, concentration))


def test_sample_promotes_half_precision():
    half = torch.ones(3, dtype=torch.bfloat16)
    assert log_weibull_sample(half, half, torch.zeros(3)).dtype == torch.float32


def test_log_gamma_gradcheck_twice():
    concentration = torch.tensor([0.05, 0.3, 1.0, 7.0, 500.0], dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(log_gamma_1p_reciprocal, (concentration,))
    assert torch.autograd.gradgradcheck(log_gamma_1p_reciprocal, (concentration,))


def test_log_gamma_second_derivative_in_float32():
    concentration = torch.tensor([0.3, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(
        log_gamma_1p_reciprocal(concentration).sum(), concentration, create_graph=True
    )
    torch.testing.assert_close(slope, -torch.digamma(1 + 1 / concentration) / concentration**2)
    (curvature,) = torch.autograd.grad(slope.sum(), concentration)
    x = 1 / concentration.detach()
    torch.testing.assert_close(curvature, torch.polygamma(1, 1 + x) * x**4 + 2 * torch.digamma(1 + x) * x**3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_finite_exp_saturates(dtype):
    log_value = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4]).to(dtype).requires_grad_()
    value = finite_exp(log_value)
    assert value.dtype == dtype
    assert (value > 0).all() and value.isfinite().all()
    assert value[0] < 3 * torch.finfo(dtype).tiny and value[-1] > torch.finfo(dtype).max / 3
    torch.testing.assert_close(value[1:4], log_value[1:4].exp())
    (gradient,) = torch.autograd.grad(value.sum(), log_value)
    torch.testing.assert_close(
        gradient, torch.cat([torch.zeros(1, dtype=dtype), value[1:4], torch.zeros(1, dtype=dtype)])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_the_logarithm_of_an_exponential(dtype):
    generator = torch.Generator().manual_seed(0)
    noise = log_standard_exponential((200_000,), dtype=dtype, generator=generator)
    assert noise.dtype == dtype
    assert stats.kstest(-noise.double().numpy(), "gumbel_r").pvalue > 1e-3


@pytest.mark.parametrize("dtype", HALVES)
def test_noise_is_never_drawn_in_half_precision(dtype):
    noise = log_standard_exponential((1000,), dtype=dtype)
    assert noise.dtype == torch.float32
    assert noise.unique().numel() > 990


def test_noise_is_finite_at_the_ends_of_the_uniform(monkeypatch):
    ends = torch.tensor([0.0, 1 - 2**-24])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: ends.clone())
    noise = log_standard_exponential((2,))
    eps = torch.finfo(torch.float32).eps
    torch.testing.assert_close(
        noise, torch.tensor([math.log(-math.log(eps)), math.log(-math.log1p(-(2**-24)))])
    )


def test_noise_follows_its_generator():
    first = log_standard_exponential((5,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, log_standard_exponential((5,), generator=torch.Generator().manual_seed(3)))
    assert not torch.equal(first, log_standard_exponential((5,), generator=torch.Generator().manual_seed(4)))


def test_gradients_that_can_be_differentiated_again_are_the_gradients():
    """Values too, which a check of the second derivative does not see: a constant has none."""
    generator = torch.Generator().manual_seed(0)

    def numbers(positive=False):
        values = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        return (values.exp() if positive else values).requires_grad_()

    for function, arguments in (
        (weibull_gamma_kl, (numbers(), numbers(), numbers(True), numbers(), numbers(True))),
        (log_weibull_sample, (numbers(), numbers(True), numbers())),
        (log_gamma_1p_reciprocal, (numbers(True),)),
    ):
        plain, again = (
            torch.autograd.grad(function(*arguments).sum(), arguments, create_graph=graph)
            for graph in (False, True)
        )
        for first, second in zip(plain, again, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)
