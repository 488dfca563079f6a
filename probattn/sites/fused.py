r"""Draws of a learned Weibull posterior in one sweep over the attention map: with the KL, or with the weights.

:class:`probattn.sites.SitePosterior` computes the same from distributions, one autograd node an operation. A map
``[B, H, T, S]`` has millions of entries and each node is a pass over memory; here the map is cut along the batch into
pieces that stay in a core's cache, and one analytic backward sweep follows one forward sweep. Exponentials of forbidden
pairs saturate above zero: far below its range ``torch.exp`` takes five times as long on a CPU.

:func:`draw_weibull`, for training, works with log S, which is safe for every concentration. :func:`draw_weights`, for
prediction, works with S where k >= 1/2: there nothing leaves float32's range, since the noise to the power of 1/k stays
between 1e-14 and 256 and the rest are probabilities. S takes half the passes over memory, and W is S over its sum
instead of a softmax of log S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from probattn.distributions.log_space import finite_exp
from probattn.distributions.special import EULER_MASCHERONI, digamma_1p, log_gamma_1p, reciprocal_gamma_1p
from probattn.sites.compiled import (
    Forward,
    Grads,
    Maps,
    WeibullOptions,
    by_rows,
    compiled_backward,
    compiled_draw,
    compiled_forward,
    four_dimensional,
    sites_compile,
)

CPU_PIECE = 2**18
"""Entries of a piece on a CPU: its handful of float32 buffers fit a core's second-level cache."""

LARGEST_INVERSE = 2.0
"""The largest 1 / k that :func:`draw_weights` computes without logarithms."""


@dataclass(frozen=True)
class Positive:
    """Positive numbers ``[B, H, T, S]`` and the smallest of each row of the batch."""

    values: Tensor

    @cached_property
    def smallest(self) -> list[float]:
        """The smallest number of each row."""
        least: list[float] = self.values.flatten(1).amin(dim=1).tolist() if self.values.numel() else []
        return least


class WeibullDraw(NamedTuple):
    """log S ``[B, H, T, S]``; the KL without the terms of the prior alone, weighted and summed, ``[B]``; and k."""

    log_value: Tensor
    kl: Tensor
    concentration: Tensor


def draw_weibull(
    log_mean: Tensor,
    mixed: Tensor | None,
    uniform: Tensor,
    alpha: Tensor | None,
    weight: Tensor | None,
    options: WeibullOptions,
) -> WeibullDraw:
    r"""Draws log S and sums its KL (Zhang et al. 2021, section 3.2), without the terms of the prior alone.

    .. math::
        k &= \rho\,\mathrm{softplus}(z) + e^{\mu} + \mathrm{floor}, \quad \log\lambda = \mu - \log\Gamma(1 + 1/k) \\
        \log S &= \log\lambda + \log(-\log u) / k \\
        \mathrm{KL} &= \sum w\,[\alpha (g / k - \log\lambda) + \log k + \beta e^{\mu}]

    for ``log_mean`` :math:`\mu`, ``mixed`` z (None leaves its term out) and ``uniform`` u (overwritten), ``[B, H, T,
    S]``; ``alpha`` (None: no KL) and the 0/1 factors ``weight`` broadcast. Gradients flow to ``log_mean``, ``mixed``
    and ``alpha``; they cannot be differentiated again.

    Example:
        >>> mu, u = torch.zeros(1, 1, 1, 2), torch.full((1, 1, 1, 2), 0.5)
        >>> draw = draw_weibull(mu, None, u, torch.ones(1), None, WeibullOptions(1.5, 0.0, 1.0))
        >>> draw.log_value  # k = 1: an exponential variable at its median, log(log 2)
        tensor([[[[-0.3665, -0.3665]]]])
    """
    return WeibullDraw(*_WeibullDraw.apply(log_mean, mixed, uniform, alpha, weight, options))


class _WeibullDraw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_mean: Tensor,
        mixed: Tensor | None,
        uniform: Tensor,
        alpha: Tensor | None,
        weight: Tensor | None,
        options: WeibullOptions,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sweep = compiled_forward if sites_compile() else _forward
        log_value, concentration, noise, kl, slope = sweep(log_mean, mixed, uniform, alpha, weight, options)
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.save_for_backward(log_mean, mixed, noise, alpha, weight, concentration, slope)
        return log_value, kl, concentration

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_value: Tensor | None,
        grad_kl: Tensor | None,
        grad_concentration: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        log_mean, mixed, log_exponential, alpha, weight, concentration, slope = ctx.saved_tensors
        options: WeibullOptions = ctx.options
        grad_alpha: Tensor | None = None
        if alpha is None:
            grad_kl = None
        if ctx.needs_input_grad[3] and grad_kl is not None:
            by_datum = slope * grad_kl.view(-1, 1, 1, 1)
            grad_alpha = by_datum.sum_to_size(four_dimensional(alpha).shape).view(alpha.shape)
        sweep = compiled_backward if sites_compile() else _backward
        grads = grad_value, grad_kl, grad_concentration
        maps = log_mean, mixed, log_exponential, concentration
        grad_mean, grad_mixed = sweep(maps, alpha, weight, grads, options)
        return grad_mean, grad_mixed, None, grad_alpha, None, None


def _forward(
    log_mean: Tensor,
    mixed: Tensor | None,
    uniform: Tensor,
    alpha: Tensor | None,
    weight: Tensor | None,
    options: WeibullOptions,
) -> Forward:
    """The sweep by pieces; it overwrites the noise."""
    log_value, concentration = torch.empty_like(log_mean), torch.empty_like(log_mean)
    kl = log_mean.new_zeros(log_mean.shape[0])
    slope = (
        None if alpha is None else log_mean.new_empty(len(kl), *four_dimensional(alpha).shape[1:])
    )  # of kl by alpha
    for piece in _pieces(log_mean):
        mean = finite_exp(log_mean[piece])
        k = torch.add(mean, options.floor, out=concentration[piece])
        if mixed is not None:
            k.add_(F.softplus(mixed[piece]), alpha=options.rho)
        inverse = k.reciprocal()
        buffer = log_gamma_1p(inverse)
        scale = torch.sub(log_mean[piece], buffer, out=buffer)
        noise = uniform[piece].clamp_(min=torch.finfo(uniform.dtype).eps).log_().neg_().log_()
        torch.addcmul(scale, noise, inverse, out=log_value[piece])
        if alpha is None or slope is None:
            continue
        surprise = inverse.mul_(EULER_MASCHERONI).sub_(scale)  # -E[log S]
        terms = torch.log(k, out=buffer).add_(mean, alpha=options.rate)
        if weight is not None:
            surprise.mul_(by_rows(weight, piece))
            terms.mul_(by_rows(weight, piece))
        slope[piece] = surprise.sum_to_size(slope[piece].shape)
        pull = (slope[piece] * by_rows(four_dimensional(alpha), piece)).flatten(1).sum(dim=1)
        kl[piece] = terms.flatten(1).sum(dim=1).add_(pull)
    return log_value, concentration, uniform, kl, slope


def _backward(
    maps: Maps, alpha: Tensor | None, weight: Tensor | None, grads: Grads, options: WeibullOptions
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``log_mean`` and ``mixed`` by pieces."""
    (log_mean, mixed, log_exponential, concentration), (grad_value, grad_kl, grad_concentration) = maps, grads
    grad_mean = torch.empty_like(log_mean)
    grad_mixed = None if mixed is None else torch.empty_like(log_mean)
    for piece in _pieces(log_mean):
        inverse = concentration[piece].reciprocal()
        mean = finite_exp(log_mean[piece])
        to_scale = torch.zeros_like(inverse) if grad_value is None else grad_value[piece].clone()
        to_inverse = to_scale * log_exponential[piece]
        share: Tensor | None = None
        if grad_kl is not None and alpha is not None:
            share = grad_kl[piece].view(-1, 1, 1, 1)
            share = share if weight is None else share * by_rows(weight, piece)
            pull = share * by_rows(alpha, piece)
            to_scale.sub_(pull)
            to_inverse.add_(pull, alpha=EULER_MASCHERONI)
        # From 1/k, and through log lambda = mu - lgamma(1 + 1/k), back to k.
        to_inverse.addcmul_(to_scale, digamma_1p(inverse), value=-1.0)
        to_k = to_inverse.mul_(inverse).mul_(inverse).neg_()
        if share is not None:
            to_k.addcmul_(inverse, share)
        if grad_concentration is not None:
            to_k.add_(grad_concentration[piece])
        if grad_mixed is not None and mixed is not None:
            torch.mul(to_k, torch.sigmoid(mixed[piece]), out=grad_mixed[piece]).mul_(options.rho)
        if share is not None:
            to_k.add_(share, alpha=options.rate)
        torch.addcmul(to_scale, to_k, mean, out=grad_mean[piece])
    return grad_mean, grad_mixed


def draw_weights(
    scores: Tensor, positive: Positive, uniform: Tensor, options: WeibullOptions
) -> tuple[Tensor, Tensor]:
    r"""Draws S and normalises it over keys, with normalised scores; not differentiable.

    .. math::
        p = \mathrm{softmax}(\Phi), \quad k = \rho\,\mathrm{softplus}(z) + p + \mathrm{floor}, \quad
        S = p\,\frac{(-\log u)^{1/k}}{\Gamma(1 + 1/k)}, \quad W = S / \textstyle\sum_{keys} S

    S >= 0 overwrites u, and W the masked scores ``[P * B, H, T, S]``, float32: a further map allocated at every call
    costs as much as the softmax. ``positive`` is softplus(z), ``[B, H, T, S]``, the same for all P draws.
    """
    least = options.rho * min(positive.smallest, default=0.0) + options.floor
    if sites_compile() and least * LARGEST_INVERSE >= 1:
        compiled_draw(scores, positive.values, uniform, options, least)
        return uniform, scores
    batch, size = len(positive.values), max(1, positive.values[:1].numel())
    step = max(1, CPU_PIECE // size) if scores.device.type == "cpu" else max(1, batch)
    for start in range(0, batch, step):
        rows = slice(start, min(start + step, batch))
        base = positive.values[rows]
        least = options.rho * min(positive.smallest[rows]) + options.floor
        for first in range(0, len(scores), batch):
            piece = slice(first + rows.start, first + rows.stop)
            mean = torch.softmax(scores[piece], dim=-1)
            inverse = torch.add(mean, base, alpha=options.rho)
            inverse = (inverse.add_(options.floor) if options.floor else inverse).reciprocal_()
            noise = uniform[piece].clamp_(min=torch.finfo(uniform.dtype).eps).log_().neg_()
            if least * LARGEST_INVERSE >= 1:
                noise.log2_().mul_(inverse).exp2_().mul_(mean).mul_(reciprocal_gamma_1p(inverse, 1 / least))
                torch.mul(noise, noise.sum(dim=-1, keepdim=True).reciprocal_(), out=scores[piece])
            else:
                phi = torch.log_softmax(scores[piece], dim=-1)
                logs = noise.log_().mul_(inverse).add_(phi.sub_(log_gamma_1p(inverse)))
                torch.softmax(logs, dim=-1, out=scores[piece])
                noise.copy_(finite_exp(logs))
    return uniform, scores


def _pieces(values: Tensor) -> Iterator[slice]:
    """Slices of the batch; the whole of it off the CPU, where launching kernels is what costs."""
    batch = values.shape[0]
    row = max(1, values[:1].numel())
    step = max(1, CPU_PIECE // row) if values.device.type == "cpu" else max(1, batch)
    return (slice(start, start + step) for start in range(0, batch, step))
