"""Elementwise arithmetic of attention sites as kernels that torch.compile makes, where a compiler is at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from probattn.distributions.log_space import finite_exp
from probattn.distributions.special import EULER_MASCHERONI, digamma_1p, log_gamma_1p, reciprocal_gamma_1p

GAMMA_BOUNDS = (0.5, 1.0, 2.0)
"""Up to where :func:`~probattn.distributions.special.reciprocal_gamma_1p` has a polynomial."""
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


Forward = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""log S, k, log(-log u), the KL ``[B]`` without the terms of the prior alone, and its slope by alpha."""
Maps = tuple[Tensor, Tensor | None, Tensor, Tensor]
"""log E[S], z, log(-log u) and k, ``[B, H, T, S]``."""
Grads = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Gradients of log S, of the KL and of k."""


@dataclass(frozen=True)
class WeibullOptions:
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
    scores: Tensor, positive: Tensor, uniform: Tensor, options: WeibullOptions, least: float
) -> None:
    """As :func:`probattn.sites.fused.draw_weights`; ``least``, the smallest k, is 1/2 or more."""
    bound = next(bound for bound in GAMMA_BOUNDS if least * bound >= 1)
    maps, noise = (each.view(-1, *positive.shape) for each in (scores, uniform))
    torch.softmax(maps, dim=-1, out=maps)
    _overwrite_with_draw(noise, maps, positive, options.rho, options.floor, bound)
    torch.mul(uniform, uniform.sum(dim=-1, keepdim=True).reciprocal_(), out=scores)


def compiled_forward(
    log_mean: Tensor,
    mixed: Tensor | None,
    uniform: Tensor,
    alpha: Tensor | None,
    weight: Tensor | None,
    options: WeibullOptions,
) -> Forward:
    """As the forward pass of :func:`probattn.sites.fused.draw_weibull`."""
    numbers = options.rho, options.floor, options.rate
    log_value, k, noise, surprise, terms = _weibull_terms(log_mean, mixed, uniform, *numbers)
    if alpha is None:
        return log_value, k, noise, log_mean.new_zeros(len(log_mean)), None
    if weight is not None:
        surprise.mul_(weight)
        terms.mul_(weight)
    slope = surprise.sum_to_size(len(log_mean), *four_dimensional(alpha).shape[1:])
    return log_value, k, noise, terms.sum(dim=(1, 2, 3)) + (slope * alpha).sum(dim=(1, 2, 3)), slope


def compiled_backward(
    maps: Maps, alpha: Tensor | None, weight: Tensor | None, grads: Grads, options: WeibullOptions
) -> tuple[Tensor, Tensor | None]:
    """As the backward pass of :func:`probattn.sites.fused.draw_weibull`."""
    grad_value, grad_kl, grad_k = grads
    share = None if grad_kl is None else grad_kl.view(-1, 1, 1, 1)
    share = share if share is None or weight is None else share * weight
    return _weibull_gradients(maps, (grad_value, share, grad_k), alpha, options.rho, options.rate)


def by_rows(tensor: Tensor, piece: slice) -> Tensor:
    """The piece of a tensor that may be broadcast along the batch."""
    return tensor[piece] if tensor.dim() == 4 and tensor.shape[0] > 1 else tensor


def four_dimensional(tensor: Tensor) -> Tensor:
    """The tensor with leading dimensions of size 1, four dimensions in all."""
    return tensor.view((1,) * (4 - tensor.dim()) + tensor.shape)


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
def _weibull_terms(
    log_mean: Tensor, mixed: Tensor | None, uniform: Tensor, rho: float, floor: float, rate: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log S, k, log(-log u), -E[log S], and log k + rate E[S], as in :func:`probattn.sites.fused.draw_weibull`."""
    mean = finite_exp(log_mean)
    k = mean + floor if mixed is None else mean + floor + rho * F.softplus(mixed)
    inverse = 1 / k
    scale = log_mean - log_gamma_1p(inverse)
    noise = torch.log(-torch.log(uniform.clamp(min=torch.finfo(uniform.dtype).eps)))
    return scale + noise * inverse, k, noise, inverse * EULER_MASCHERONI - scale, torch.log(k) + rate * mean


@_kernel
def _weibull_gradients(
    maps: Maps, grads: Grads, alpha: Tensor | None, rho: float, rate: float
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``log_mean`` and ``mixed``, given those of log S, of the KL's terms, weighted, and of k."""
    log_mean, mixed, noise, k = maps
    grad_value, share, grad_k = grads
    mean, inverse = finite_exp(log_mean), 1 / k
    to_scale = torch.zeros_like(k) if grad_value is None else grad_value
    to_inverse = to_scale * noise
    if share is not None and alpha is not None:
        pull = share * alpha
        to_scale, to_inverse = to_scale - pull, to_inverse + EULER_MASCHERONI * pull
    to_k = -(to_inverse - to_scale * digamma_1p(inverse)) * inverse * inverse
    if share is not None:
        to_k = to_k + share * inverse
    if grad_k is not None:
        to_k = to_k + grad_k
    to_mean = to_k if share is None else to_k + rate * share
    return to_scale + to_mean * mean, None if mixed is None else to_k * torch.sigmoid(mixed) * rho


def _probe(values: Tensor) -> Tensor:
    return values.exp() + 1
