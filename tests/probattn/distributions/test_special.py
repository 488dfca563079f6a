"""Special functions against mpmath and scipy."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import special as scipy_special

from probattn.distributions.special import (
    digamma_1p,
    log_gamma_1p,
    log_gamma_and_digamma_1p,
    log_gamma_doubling_excess,
    reciprocal_gamma_1p,
)

CONCENTRATIONS = torch.logspace(np.log10(0.04), 6, 100_001, dtype=torch.float64)
EPS = torch.finfo(torch.float32).eps


def _exact_arguments() -> torch.Tensor:
    """1/k rounded to float32, so that the oracle sees the very argument of the function."""
    return CONCENTRATIONS.float().reciprocal()


@pytest.mark.parametrize(
    ("function", "oracle"),
    [
        (log_gamma_1p, lambda x: scipy_special.gammaln(1 + x)),
        (digamma_1p, lambda x: scipy_special.psi(1 + x)),
    ],
)
def test_float32_series_errs_by_less_than_three_roundings(function, oracle):
    x = _exact_arguments()
    truth = torch.from_numpy(oracle(x.double().numpy()))
    error = (function(x).double() - truth).abs() / truth.abs().clamp(min=1)
    assert error.max() < 3 * EPS


@pytest.mark.parametrize(
    ("function", "oracle"), [(log_gamma_1p, mpmath.loggamma), (digamma_1p, mpmath.digamma)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_mpmath(function, oracle, dtype):
    x = _exact_arguments()[::2000].to(dtype)
    truth = torch.tensor([float(oracle(1 + mpmath.mpf(value))) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(
        function(x).double(), truth, rtol=3 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )


def test_float32_log_gamma_keeps_its_digits_near_zero():
    x = torch.logspace(-6, -1, 1001, dtype=torch.float64).float()
    truth = torch.from_numpy(scipy_special.loggamma(1 + x.double().numpy()))
    relative = ((log_gamma_1p(x).double() - truth) / truth).abs()
    assert relative.max() < 1e-6
    torch_relative = ((torch.lgamma(1 + x).double() - truth) / truth).abs()
    assert torch_relative.max() > 1e-3  # 1 + x has lost them


def test_the_ends_of_the_range():
    ends = torch.tensor([0.0, 1e30])
    assert log_gamma_1p(ends)[0] == 0
    torch.testing.assert_close(log_gamma_1p(ends)[1], torch.lgamma(ends[1]))
    torch.testing.assert_close(digamma_1p(ends), torch.digamma(1 + ends))


@pytest.mark.parametrize("function", [log_gamma_1p, digamma_1p, log_gamma_doubling_excess])
def test_large_and_expanded_tensors_are_their_elements(function):
    row = torch.linspace(0, 20, 1000)
    many = row.expand(700, 1000)  # several pieces, not contiguous
    torch.testing.assert_close(function(many), function(row).expand(700, 1000))
    torch.testing.assert_close(function(many.T), function(row)[:, None].expand(1000, 700))


def test_empty_tensors():
    for function in (log_gamma_1p, digamma_1p, log_gamma_doubling_excess):
        assert function(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 20), (torch.float64, 8)])
def test_doubling_excess_against_mpmath(dtype, roundings):
    seams = [torch.linspace(0.1, 0.1249, 20), torch.linspace(0.49, 0.51, 21)]
    x = torch.cat([torch.logspace(-6, 1.4, 101), *seams]).to(dtype)
    with mpmath.workdps(40):
        truth = [
            float(mpmath.loggamma(1 + 2 * mpmath.mpf(value)) - 2 * mpmath.loggamma(1 + mpmath.mpf(value)))
            for value in x.tolist()
        ]
    relative = (log_gamma_doubling_excess(x).double() / torch.tensor(truth, dtype=torch.float64) - 1).abs()
    assert relative.max() < roundings * torch.finfo(dtype).eps


def test_doubling_excess_gradient():
    x = torch.tensor([1e-3, 0.1249, 0.1251, 0.5, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_gamma_doubling_excess, (x,))


@pytest.mark.parametrize("largest", [0.3, 0.5, 0.8, 1.0, 1.5, 2.0])
def test_reciprocal_gamma_against_scipy(largest):
    x = torch.linspace(0, largest, 10001, dtype=torch.float32)
    exact = torch.from_numpy(scipy_special.rgamma(1 + x.double().numpy()))
    assert (reciprocal_gamma_1p(x, largest).double() / exact - 1).abs().max() < 1e-6
    error = (reciprocal_gamma_1p(x.double(), largest) / exact.double() - 1).abs().max()
    assert error < 6e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_off_the_cpu_no_operation_takes_numbers_of_the_cpu(dtype):
    """Meta tensors refuse them as those of an accelerator do; values of the CPU's own kernels are another matter."""
    x = torch.rand(3, 5, device="meta", dtype=dtype)
    for found in (
        *(reciprocal_gamma_1p(x, largest) for largest in (0.3, 1.0, 2.0)),
        log_gamma_1p(x),
        digamma_1p(x),
        *log_gamma_and_digamma_1p(x),
        log_gamma_doubling_excess(x),
    ):
        assert (found.shape, found.dtype, found.device.type) == (x.shape, dtype, "meta")


@pytest.mark.parametrize("largest", [0.3, 1.0, 2.0])
@pytest.mark.cuda
def test_reciprocal_gamma_on_a_cuda_device(largest):
    x = torch.linspace(0, largest, 10001)
    exact = torch.from_numpy(scipy_special.rgamma(1 + x.double().numpy()))
    assert (reciprocal_gamma_1p(x.cuda(), largest).cpu().double() / exact - 1).abs().max() < 1e-6


def test_reciprocal_gamma_has_an_end():
    with pytest.raises(ValueError, match=r"expected x <= 2, got up to 2\.5"):
        reciprocal_gamma_1p(torch.ones(1), 2.5)
