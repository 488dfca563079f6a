"""Elementwise arithmetic of attention sites as kernels that torch.compile makes, where a compiler is at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from probattn.distributions.log_space import finite_exp
from probattn.distributions.special import EULER_MASCHERONI, digamma_1p, log_gamma_1p, reciprocal_gamma_1p

GAMMA_BOUNDS = (0.5, 1.0, 2.0)
"""Up to where :func:`~probattn.distributions.special.reciprocal_gamma_1p` has a polynomial."""
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


NOISE_RANGE = (-40.0, 4.0)
"""Where log(-log u) lies for all numbers u of a draw, float32 or float64."""


class Drawn(NamedTuple):
    """What the gradient of a draw follows from.

    Attributes:
        log_mean: log E[S], ``[B, H, T, S]``.
        rise: as in :func:`probattn.sites.fused.draw_weibull`; None where k does not depend on the upward path.
        value: the weights W, or log(-log u) of a draw that was not normalised.
        log_sum: log-sum-exp of log S, ``[B, H, T, 1]``; None for a draw that was not normalised.
    """

    log_mean: Tensor
    rise: Tensor | None
    value: Tensor
    log_sum: Tensor | None


@dataclass(frozen=True)
class WeibullConstants:
    """Numbers of a learned Weibull posterior and its gamma prior: rho, the floor of k, and the rate beta."""

    rho: float
    floor: float
    rate: float


class _Switch:
    """Whether sites compile, one answer for the process."""

    on = False


def compile_sites(enabled: bool = True) -> None:
    """Lets attention sites compute draws, divergences and their gradients in kernels of ``torch.compile``.

    A draw is some twenty operations, each a pass over the map ``[B, H, T, S]``; a kernel makes one pass of them. Noise
    is the same, and results are to rounding. It needs a compiler (C++ for a CPU, Triton for a GPU) and some seconds
    when a process first meets a kind of site; torch keeps the kernels on disk. It holds for the whole process and for
    Weibull posteriors whose concentration is learned, without a learned scale; other sites are as before.

    Args:
        enabled: False goes back.

    Raises:
        RuntimeError: torch finds no compiler for a CPU that works.

    Example:
        >>> compile_sites(False)
        >>> sites_compile()
        False
    """
    if enabled:
        _check_compiler()
    _Switch.on = enabled


@cache
def _check_compiler() -> None:
    """Raises ``RuntimeError`` unless torch compiles; asked until it does."""
    try:
        torch.compile(_probe)(torch.zeros(8))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line and not line.startswith("backend=")]
        raise RuntimeError(
            "compile_sites: expected a compiler that torch.compile can use (for a CPU g++ or clang++ on the path, "
            f"or in the variable CXX), got: {lines[0]}"
        ) from error


def sites_compile() -> bool:
    """Whether :func:`compile_sites` is on."""
    return _Switch.on


def compiled_draw(
    scores: Tensor, positive: Tensor, uniform: Tensor, options: WeibullConstants, least: float
) -> None:
    """As :func:`probattn.sites.fused.draw_weights`; ``least``, the smallest k, is 1/2 or more."""
    bound = next(bound for bound in GAMMA_BOUNDS if least * bound >= 1)
    maps, noise = (item.view(-1, *positive.shape) for item in (scores, uniform))
    torch.softmax(maps, dim=-1, out=maps)
    _overwrite_with_draw(noise, maps, positive, options.rho, options.floor, bound)
    torch.mul(uniform, uniform.sum(dim=-1, keepdim=True).reciprocal_(), out=scores)


def compiled_terms(
    log_mean: Tensor,
    rise: Tensor | None,
    uniform: Tensor,
    value: Tensor,
    options: WeibullConstants,
    with_kl: bool,
) -> tuple[Tensor, Tensor] | None:
    """The terms of :func:`probattn.sites.fused.draw_weibull` in one kernel."""
    other = None if value is uniform else value
    return _terms_kernel(log_mean, rise, uniform, other, options.rho, options.floor, options.rate, with_kl)


def compiled_gradients(
    drawn: Drawn,
    pulls: tuple[Tensor | None, Tensor | None, Tensor | None],
    grads: tuple[Tensor, Tensor | None],
    options: WeibullConstants,
) -> None:
    """The gradients of :func:`probattn.sites.fused.draw_weibull` in one kernel."""
    own, normalised = pulls[0], drawn.log_sum is not None
    centre = (own * drawn.value).sum(dim=-1, keepdim=True) if own is not None and normalised else None
    _gradients_kernel(drawn, pulls, centre, grads, options.rho, options.floor, options.rate)


def _kernel(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function of tensors and numbers as one kernel for any sizes, compiled when it is called first.

    Reductions stay outside: where several are fused, torch 2.13 fails to compile them for changing sizes. Past torch's
    limit of variants the function runs as it is.
    """

    @cache
    def made() -> Callable[_Arguments, _Result]:
        return torch.compile(function, dynamic=True)  # which loads torch's compiler

    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        # Dynamo asks every tensor for its gradient; those within a graph warn.
        plain: Any = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        return made()(*plain[0], **plain[1])

    return call


@_kernel
def _overwrite_with_draw(
    noise: Tensor, mean: Tensor, positive: Tensor, rho: float, floor: float, bound: float
) -> None:
    """S in place of u, from E[S] and softplus(z); ``bound``, at least 1 / k, as in ``reciprocal_gamma_1p``."""
    inverse = 1 / (mean + rho * positive + floor)
    exponential = -torch.log(noise.clamp(min=torch.finfo(noise.dtype).eps))
    noise.copy_(torch.exp2(torch.log2(exponential) * inverse) * mean * reciprocal_gamma_1p(inverse, bound))


@_kernel
def _terms_kernel(
    log_mean: Tensor,
    rise: Tensor | None,
    uniform: Tensor,
    value: Tensor | None,
    rho: float,
    floor: float,
    rate: float,
    with_kl: bool,
) -> tuple[Tensor, Tensor] | None:
    """Writes log S into ``value`` and log(-log u) in place of u, or log S there; as :func:`compiled_terms`."""
    mean = finite_exp(log_mean)
    k = mean + floor if rise is None else mean + floor + rho * rise
    inverse = 1 / k
    scale = log_mean - log_gamma_1p(inverse)
    noise = torch.log(-torch.log(uniform.clamp(min=torch.finfo(uniform.dtype).eps)))
    if value is None:
        uniform.copy_(scale + noise * inverse)
    else:
        value.copy_(scale + noise * inverse)
        uniform.copy_(noise)
    return (inverse * EULER_MASCHERONI - scale, torch.log(k) + rate * mean) if with_kl else None


@_kernel
def _gradients_kernel(
    drawn: Drawn,
    pulls: tuple[Tensor | None, Tensor | None, Tensor | None],
    centre: Tensor | None,
    grads: tuple[Tensor, Tensor | None],
    rho: float,
    floor: float,
    rate: float,
) -> None:
    """Writes the gradients of ``log_mean`` and ``rise``; ``centre`` is the mean of the weights' under them."""
    (grad_value, share, alpha), (grad_mean, grad_rise) = pulls, grads
    log_mean, rise, value, log_sum = drawn
    mean = finite_exp(log_mean)
    k = mean + floor if rise is None else mean + floor + rho * rise
    inverse = 1 / k
    to_scale = torch.zeros_like(k) if grad_value is None else grad_value
    noise = value
    if log_sum is not None:
        to_scale = to_scale * value if centre is None else value * (to_scale - centre)
        logs = torch.log(value.clamp(min=torch.finfo(value.dtype).tiny)) + log_sum
        noise = ((logs - log_mean + log_gamma_1p(inverse)) * k).clamp(*NOISE_RANGE)
    to_inverse = to_scale * noise
    if share is not None and alpha is not None:
        pull = share * alpha
        to_scale, to_inverse = to_scale - pull, to_inverse + EULER_MASCHERONI * pull
    to_k = -(to_inverse - to_scale * digamma_1p(inverse)) * inverse * inverse
    if share is not None:
        to_k = to_k + share * inverse
    if grad_rise is not None:
        grad_rise.copy_(rho * to_k)
    to_mean = to_k if share is None else to_k + rate * share
    grad_mean.copy_(to_scale + to_mean * mean)


def _probe(values: Tensor) -> Tensor:
    return values.exp() + 1
