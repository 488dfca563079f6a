"""log Gamma(1 + x) and its derivative for x >= 0, cheap in float32 on a CPU, without gradients of their own."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from probattn.host import on_cpu

EULER_MASCHERONI = 0.57721566490153286061


def _numbers(*values: float) -> Tensor:
    # A graph of any sizes would take numbers of Python for variables, which an autograd function in it cannot have.
    return torch.tensor(values, dtype=torch.float64, device="cpu")


# With w = 1 / (1 + x), the remainder of Stirling's formula is a smooth function of w on (0, 1]. Minimax
# polynomials in w, coefficients from the constant upwards:
#   lgamma(1 + x)  = (x + 1/2) log1p(x) - x + (1 - w) p(w)     error 3.4e-8, and 7e-8 of it as x -> 0
#   digamma(1 + x) = log1p(x) - w q(w)                         error 3.5e-8
LGAMMA_COEFFICIENTS = _numbers(
    -0.0810614327592,
    0.00226891614447,
    0.00231151401203,
    -0.000691410928498,
    -0.000151148407024,
    0.000107965107314,
)
DIGAMMA_COEFFICIENTS = _numbers(
    0.500002792112, 0.0832640040208, 0.000584090162355, -0.0106665903457, 0.00486886192528, -0.000837457603522
)
# 1 / Gamma(1 + x) = 1 + x q(x) is an entire function. Minimax polynomials q, coefficients from the constant upwards,
# with the largest x that they are made for; relative errors 7e-9, 3.4e-8 and 3.5e-8.
_RECIPROCAL_GAMMA_COEFFICIENTS = (
    (0.5, (0.577215640414, -0.655867902243, -0.0422083182457, 0.168087362728, -0.0477153763281)),
    (
        1.0,
        (
            0.577212767354,
            -0.655801955206,
            -0.0426752393944,
            0.169352239229,
            -0.0485002168621,
            -0.00184193174693,
            0.00225437069581,
        ),
    ),
    (
        2.0,
        (
            0.577213606457,
            -0.65584041459,
            -0.042233754468,
            0.167204478269,
            -0.0431875790015,
            -0.0089426539431,
            0.00726529604643,
            -0.00161390518664,
            0.000134896602338,
        ),
    ),
)
RECIPROCAL_GAMMA_BOUNDS = tuple(bound for bound, _ in _RECIPROCAL_GAMMA_COEFFICIENTS)
"""Up to where :func:`reciprocal_gamma_1p` has a polynomial."""
# Taylor coefficients of lgamma(1 + 2x) - 2 lgamma(1 + x) from x^2 on: (-1)^n zeta(n) (2^n - 2) / n.
_ZETA = torch.special.zeta(torch.arange(2, 26, dtype=torch.float64, device="cpu"), 1).tolist()
_DOUBLING_COEFFICIENTS = tuple((-1) ** n * zeta * (2**n - 2) / n for n, zeta in enumerate(_ZETA, start=2))
_DOUBLING_RADIUS = 0.125
# Chebyshev interpolants of the same for float32, coefficients from the constant upwards:
#   x <= 1/2: x^2 p(x)                                                   relative error 1.2e-8
#   x >= 1/2: x log 4 - log(pi (x + 1/4)) / 2 + q(1 / (x + 1/4))         error 2.8e-8
_DOUBLING_NEAR_COEFFICIENTS = _numbers(
    1.64493404776,
    -2.40410613586,
    3.78761347144,
    -6.20772794097,
    10.3197762519,
    -16.5488547962,
    23.2841296162,
    -25.1632310886,
    17.5515024553,
    -5.72523838959,
)
_DOUBLING_FAR_COEFFICIENTS = _numbers(
    2.82901943946e-08,
    -2.74632853739e-06,
    -0.015579308361,
    -0.000301882222265,
    0.00345725103062,
    -0.00188042377709,
    0.000488335984586,
    -5.19735415317e-05,
)

_PIECE = 2**18  # float32 entries: 1 MiB


def _polynomial(variable: Tensor, coefficients: Tensor, out: Tensor) -> Tensor:
    """Horner's rule in one buffer, one pass a coefficient."""
    scalars = coefficients.to(variable.dtype).unbind()
    torch.addcmul(scalars[-2], variable, scalars[-1], out=out)
    for scalar in scalars[-3::-1]:
        torch.addcmul(scalar, out, variable, out=out)
    return out


def _log_gamma_series(x: Tensor, out: Tensor, digamma: Tensor | None = None) -> None:
    """Writes the derivative into ``digamma`` if it is given; the two share a logarithm."""
    shrunk = x.add(1).reciprocal_()
    _polynomial(shrunk, LGAMMA_COEFFICIENTS, out).mul_(x).mul_(shrunk)  # (1 - w) = x w
    if digamma is not None:
        _polynomial(shrunk, DIGAMMA_COEFFICIENTS, digamma).mul_(shrunk)
    logarithm = torch.log1p(x, out=shrunk)
    if digamma is not None:
        torch.sub(logarithm, digamma, out=digamma)
    out.add_(logarithm, alpha=0.5).addcmul_(logarithm.sub_(1), x)


def _digamma_series(x: Tensor, out: Tensor) -> None:
    shrunk = x.add(1).reciprocal_()
    _polynomial(shrunk, DIGAMMA_COEFFICIENTS, out).mul_(shrunk)
    torch.sub(torch.log1p(x, out=shrunk), out, out=out)


def _doubling_series(x: Tensor, out: Tensor) -> None:
    shifted = x.add(0.25)
    far = _polynomial(shifted.reciprocal(), _DOUBLING_FAR_COEFFICIENTS, torch.empty_like(x))
    far.add_(x, alpha=math.log(4)).sub_(shifted.mul_(math.pi).log_(), alpha=0.5)
    near = x.clamp(max=0.5)
    _polynomial(near, _DOUBLING_NEAR_COEFFICIENTS, out).mul_(near.square_())
    torch.where(x <= 0.5, out, far, out=out)


def _by_pieces(series: Callable[..., None], x: Tensor, results: int = 1) -> tuple[Tensor, ...]:
    """Applies a series piece by piece: a dozen passes over what stays in a core's cache, one buffer for each result."""
    if torch.compiler.is_compiling():  # into one kernel
        whole = tuple(torch.empty_like(x) for _ in range(results))
        series(x, *whole)
        return whole
    flat = x.reshape(-1)
    made = tuple(torch.empty_like(flat) for _ in range(results))
    for pieces in zip(*(item.split(_PIECE) for item in (flat, *made)), strict=True):
        series(*pieces)
    return tuple(item.view(x.shape) for item in made)


def _has_series(x: Tensor) -> bool:
    # torch.lgamma is one kernel on an accelerator and exact enough in float64.
    return x.dtype == torch.float32 and on_cpu(x)


def log_gamma_1p(x: Tensor) -> Tensor:
    """log Gamma(1 + x) for x >= 0, in a new tensor; not differentiable by autograd."""
    # In float32 on a CPU by Stirling's formula (Abramowitz & Stegun 1964, 6.1.40) with a minimax remainder: about three
    # times as fast as torch.lgamma and as accurate.
    if not _has_series(x):
        return x.add(1).lgamma_()
    return _by_pieces(_log_gamma_series, x)[0]


def digamma_1p(x: Tensor) -> Tensor:
    """digamma(1 + x) for x >= 0, the derivative of :func:`log_gamma_1p`, in a new tensor; without autograd."""
    # In float32 on a CPU by its asymptotic formula (Abramowitz & Stegun 1964, 6.3.18) with a minimax remainder.
    if not _has_series(x):
        return x.add(1).digamma_()
    return _by_pieces(_digamma_series, x)[0]


def log_gamma_and_digamma_1p(x: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`log_gamma_1p` and :func:`digamma_1p` together, which share a logarithm."""
    if not _has_series(x):
        return log_gamma_1p(x), digamma_1p(x)
    log_gamma, digamma = _by_pieces(_log_gamma_series, x, 2)
    return log_gamma, digamma


def reciprocal_gamma_1p(x: Tensor, largest: float) -> Tensor:
    """1 / Gamma(1 + x) for 0 <= x <= ``largest`` <= 2, to 1e-6 in float32; not differentiable by autograd."""
    # On a CPU by a polynomial of as few terms as ``largest`` allows.
    if not on_cpu(x) and largest <= RECIPROCAL_GAMMA_BOUNDS[-1]:
        return log_gamma_1p(x).neg_().exp_()
    for bound, coefficients in _RECIPROCAL_GAMMA_COEFFICIENTS:
        if largest <= bound:
            series = _polynomial(x, _numbers(*coefficients), torch.empty_like(x))
            return series.mul_(x).add_(1.0)
    raise ValueError(f"reciprocal_gamma_1p: expected x <= 2, got up to {largest}")


def log_gamma_doubling_excess(x: Tensor) -> Tensor:
    """lgamma(1 + 2x) - 2 lgamma(1 + x), for x >= 0, without the cancellation at a small x."""
    if _has_series(x) and not (x.requires_grad and torch.is_grad_enabled()):
        return _by_pieces(_doubling_series, x)[0]
    small = x < _DOUBLING_RADIUS
    bounded = x.clamp(max=_DOUBLING_RADIUS)
    terms = _DOUBLING_COEFFICIENTS[: 11 if x.dtype == torch.float32 else None]
    series = bounded * terms[-1] + terms[-2]
    for coefficient in terms[-3::-1]:
        series = series * bounded + coefficient
    series = series * bounded.square()
    return torch.where(small, series, torch.lgamma(1 + 2 * x) - 2 * torch.lgamma(1 + x))
