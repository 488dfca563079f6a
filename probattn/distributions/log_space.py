"""Elementwise functions of positive random variables, in log space.

They run once per attention weight, so a pass over the tensor is what they save: gradients are analytic, work
happens in place on buffers of their own, and special functions are evaluated on unexpanded parameters. Every
gradient can be differentiated again.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from probattn.distributions.special import EULER_MASCHERONI, digamma_1p, log_gamma_1p


def computing_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype elementwise work is done in: the promoted dtype of the tensors, at least float32."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def finite_exp(log_value: Tensor) -> Tensor:
    """The exponential of ``log_value``, clamped to the range of its dtype; the result is positive and finite.

    The gradient is 0 where the result is clamped. ``log_value`` has any shape and any floating dtype.

    Returns:
        exp(log_value), of the same shape and dtype, between the smallest normal and the largest number of the dtype.

    Example:
        >>> finite_exp(torch.tensor([-1e4, 0.0, 1e4]))
        tensor([1.1755e-38, 1.0000e+00, 3.4028e+38])
    """
    info = torch.finfo(log_value.dtype)
    low = math.log(info.tiny) * (1 - info.eps)
    high = math.log(info.max) * (1 - info.eps)
    return log_value.clamp(low, high).exp_()


def log_standard_exponential(
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws log E with E ~ Exponential(1): log(-log u) with u uniform on (0, 1).

    u is clamped from below to the machine epsilon of the dtype, so -log u is at most about 15.9 in float32.

    Args:
        shape: Shape of the draw.
        dtype: Floating dtype; for float16 and bfloat16 the draw is made and returned in float32.
        device: Device of the draw.
        generator: Source of randomness; the device's global one if None.

    Returns:
        log E, a tensor of shape ``shape``; -log E is a standard Gumbel variable.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> log_standard_exponential((2,), generator=generator).isfinite().all().item()
        True
    """
    dtype = torch.promote_types(dtype, torch.float32)
    uniform = torch.rand(tuple(shape), dtype=dtype, device=device, generator=generator)
    return standard_exponential(uniform).log_()


def standard_exponential(uniform: Tensor) -> Tensor:
    """Writes E = -log u in place of uniform numbers u, which are clamped from below by the machine epsilon."""
    return uniform.clamp_(min=torch.finfo(uniform.dtype).eps).log_().neg_()


class _LogGamma1pReciprocal(torch.autograd.Function):
    """lgamma(1 + 1/k) with one digamma in the backward pass."""

    @staticmethod
    def forward(concentration: Tensor) -> Tensor:
        return log_gamma_1p(concentration.reciprocal())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (concentration,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            return -grad * torch.digamma(1 + 1 / concentration) / concentration.square()
        reciprocal = concentration.reciprocal()
        return digamma_1p(reciprocal).mul_(reciprocal).mul_(reciprocal).mul_(grad).neg_()


def log_gamma_1p_reciprocal(concentration: Tensor) -> Tensor:
    """The logarithm of Gamma(1 + 1/k): the log-mean of a Weibull variable of unit scale and concentration k.

    Source: Zhang et al. 2021a, section 3.2. The forward pass evaluates one log-gamma, the backward pass one digamma.

    Args:
        concentration: k > 0, any shape, any floating dtype. Half precision is computed in float32.

    Returns:
        log Gamma(1 + 1/k), of the shape and dtype of ``concentration``.

    Example:
        >>> log_gamma_1p_reciprocal(torch.tensor([0.4, 2.0]))
        tensor([ 1.2010, -0.1208])
    """
    computed: Tensor = _LogGamma1pReciprocal.apply(concentration.to(computing_dtype(concentration)))
    return computed.to(concentration.dtype)


class _LogWeibullSample(torch.autograd.Function):
    """log_scale + log_exponential / k in one pass forward."""

    @staticmethod
    def forward(log_scale: Tensor, concentration: Tensor, log_exponential: Tensor) -> Tensor:
        return torch.addcdiv(log_scale, log_exponential, concentration)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        ctx.scale_shape = inputs[0].shape
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        concentration, log_exponential = ctx.saved_tensors
        needs = ctx.needs_input_grad
        scale_grad = grad.sum_to_size(ctx.scale_shape) if needs[0] else None
        if not (needs[1] or needs[2]):
            return scale_grad, None, None
        shrunk = grad / concentration
        noise_grad = shrunk.sum_to_size(log_exponential.shape) if needs[2] else None
        if not needs[1]:
            return scale_grad, None, noise_grad
        if torch.is_grad_enabled() or needs[2]:
            slope = -shrunk * log_exponential / concentration
        else:
            slope = shrunk.mul_(log_exponential).div_(concentration).neg_()
        return scale_grad, slope.sum_to_size(concentration.shape), noise_grad


def log_weibull_sample(log_scale: Tensor, concentration: Tensor, log_exponential: Tensor) -> Tensor:
    """A Weibull draw from exponential noise by inversion: log S = log lambda + log E / k.

    Source: Zhang et al. 2021a, section 3.2, where E = -log(1 - u) with u uniform on (0, 1).

    Args:
        log_scale: log lambda, broadcastable with the other arguments.
        concentration: k > 0.
        log_exponential: log E, from :func:`log_standard_exponential`.

    Returns:
        log S, of the broadcast shape and the promoted dtype of the arguments, at least float32.

    Example:
        >>> log_weibull_sample(torch.tensor(1.0), torch.tensor(2.0), torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.5000, 1.0000, 1.5000])
    """
    arguments = (log_scale, concentration, log_exponential)
    dtype = computing_dtype(*arguments)
    return _LogWeibullSample.apply(*(argument.to(dtype) for argument in arguments))


def negative_expected_log(log_scale: Tensor, inverse: Tensor, *, overwrite: bool = False) -> Tensor:
    """-E[log S] = g / k - log lambda of a Weibull variable, from 1 / k; in its place with ``overwrite``."""
    return _in_place("sub", (inverse.mul_ if overwrite else inverse.mul)(EULER_MASCHERONI), log_scale)


def gamma_terms(log_alpha: Tensor, alpha: Tensor, log_gamma: Tensor, log_rate: Tensor | float) -> Tensor:
    """A gamma prior's terms of a Weibull's KL, log Gamma(alpha) - alpha log beta - g - 1, from log Gamma(1 + alpha)."""
    return log_gamma - log_alpha - alpha * log_rate - (EULER_MASCHERONI + 1)


def cross_terms(
    scaled_mean: Tensor, log_scale: Tensor, k: Tensor, alpha: Tensor, prior: Tensor | None = None
) -> Tensor:
    """The other terms, alpha (g / k - log lambda) + log k + ``scaled_mean``, which is beta E[S], plus the prior's."""
    # Differentiable, in as few buffers as that allows.
    surprise = negative_expected_log(log_scale, k.reciprocal(), overwrite=not torch.is_grad_enabled())
    result = _in_place("mul", surprise, alpha)
    result = result if prior is None else _in_place("add", result, prior)
    return _in_place("add", _in_place("add", result, k.log()), scaled_mean)


def _in_place(operation: str, buffer: Tensor, other: Tensor) -> Tensor:
    """buffer.operation(other), in place unless broadcasting makes the buffer grow."""
    sizes = zip(reversed(other.shape), reversed(buffer.shape), strict=False)
    fits = other.dim() <= buffer.dim() and all(size in (1, wide) for size, wide in sizes)
    return getattr(buffer, f"{operation}_" if fits else operation)(other)


class _WeibullGammaKL(torch.autograd.Function):
    """The divergence with analytic gradients; saves its arguments and nothing else."""

    @staticmethod
    def forward(
        log_mean: Tensor, log_scale: Tensor, concentration: Tensor, log_alpha: Tensor, rate: Tensor
    ) -> Tensor:
        alpha = log_alpha.exp()
        prior = gamma_terms(log_alpha, alpha, log_gamma_1p(alpha), rate.log())
        return cross_terms(_in_place("mul", log_mean.exp(), rate), log_scale, concentration, alpha, prior)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            return _differentiable_gradients(ctx, grad)
        log_mean, log_scale, concentration, log_alpha, rate = ctx.saved_tensors
        needs = ctx.needs_input_grad
        gradients: list[Tensor | None] = [None] * 5
        alpha = log_alpha.exp()
        if needs[0] or needs[4]:
            mean_grad = _in_place("mul", log_mean.exp(), grad)  # E[S] dKL
            if needs[4]:
                gradients[4] = (mean_grad - grad * (alpha / rate)).sum_to_size(rate.shape)
            gradients[0] = _in_place("mul", mean_grad, rate).sum_to_size(log_mean.shape)
        if needs[1]:
            gradients[1] = (grad * -alpha).sum_to_size(log_scale.shape)
        if needs[2]:
            reciprocal = concentration.reciprocal()
            slope = _in_place("mul", reciprocal * (alpha * -EULER_MASCHERONI), reciprocal)
            slope = _in_place("mul", slope.add_(reciprocal), grad)
            gradients[2] = slope.sum_to_size(concentration.shape)
        if needs[3]:
            pull = negative_expected_log(log_scale, concentration.reciprocal(), overwrite=True)
            pull = _in_place("mul", _in_place("sub", pull, rate.log()), grad).sum_to_size(log_alpha.shape)
            prior_slope = digamma_1p(alpha).mul_(alpha).sub_(1)
            gradients[3] = pull * alpha + grad.sum_to_size(log_alpha.shape) * prior_slope
        return tuple(gradients)


def _differentiable_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # Views, since one argument may depend on another: its gradient here is the one at fixed others.
    arguments = [argument.view_as(argument) for argument in ctx.saved_tensors]
    needs = ctx.needs_input_grad
    inputs = [argument for argument, requires_grad in zip(arguments, needs, strict=True) if requires_grad]
    log_mean, log_scale, concentration, log_alpha, rate = arguments
    alpha = log_alpha.exp()
    prior = gamma_terms(log_alpha, alpha, torch.lgamma(1 + alpha), rate.log())
    divergence = cross_terms(log_mean.exp() * rate, log_scale, concentration, alpha, prior)
    gradients = iter(torch.autograd.grad(divergence, inputs, grad, create_graph=True))
    return tuple(next(gradients) if requires_grad else None for requires_grad in needs)


def weibull_gamma_kl(
    log_mean: Tensor, log_scale: Tensor, concentration: Tensor, log_alpha: Tensor, rate: Tensor | float = 1.0
) -> Tensor:
    """KL(Weibull(k, lambda) || Gamma(alpha, beta)), elementwise, in nats.

    Zhang et al. 2021a, section 3.2, with g the Euler-Mascheroni constant: g alpha / k - alpha log lambda + log k + beta
    lambda Gamma(1 + 1/k) - g - 1 - alpha log beta + log Gamma(alpha), where lambda Gamma(1 + 1/k) = E[S] =
    exp(log_mean) and log Gamma(alpha) = log Gamma(1 + alpha) - log alpha. The log-gamma is evaluated in the shape of
    log_alpha; pass a prior that all queries share as [B, H, 1, S], not expanded to [B, H, T, S].

    The function differentiates with respect to log_mean, log_scale and concentration as independent arguments;
    autograd adds the contributions where the caller computed one of them from another.

    Args:
        log_mean: log E[S], broadcastable with the other arguments.
        log_scale: log lambda, finite.
        concentration: k > 0.
        log_alpha: log alpha of the prior; may be below the logarithm of the smallest float.
        rate: beta > 0 of the prior.

    Returns:
        The divergence, of the broadcast shape and promoted dtype; half precision is computed in float32.

    Example:
        >>> one = torch.tensor(1.0)
        >>> weibull_gamma_kl(0 * one, 0 * one, one, 0 * one, rate=2.0)  # Exponential(1) from Exponential(2)
        tensor(0.3069)
    """
    beta = rate if isinstance(rate, Tensor) else log_alpha.new_tensor(rate)
    arguments = (log_mean, log_scale, concentration, log_alpha, beta)
    dtype = computing_dtype(*arguments)
    divergence: Tensor = _WeibullGammaKL.apply(*(argument.to(dtype) for argument in arguments))
    return divergence.to(reduce(torch.promote_types, (argument.dtype for argument in arguments)))
