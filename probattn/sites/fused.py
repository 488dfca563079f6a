r"""Draws of a learned Weibull posterior in one sweep over the attention map: with the KL, or with the weights.

:class:`probattn.sites.SitePosterior` computes the same from distributions, one autograd node an operation. A map
``[B, H, T, S]`` has millions of entries and each node is a pass over memory; here the map is cut into pieces
that stay in a core's cache, and one analytic backward sweep follows one forward sweep. Exponentials of forbidden
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

from probattn.distributions.log_space import finite_exp
from probattn.distributions.special import (
    EULER_MASCHERONI,
    digamma_1p,
    log_gamma_1p,
    log_gamma_and_digamma_1p,
    reciprocal_gamma_1p,
)
from probattn.first_order import edges_to, first_order
from probattn.sites.compiled import (
    NOISE_RANGE,
    Drawn,
    WeibullConstants,
    compiled_draw,
    compiled_gradients,
    compiled_terms,
    sites_compile,
)
from probattn.sites.layout import Places, cut, part_of

ADVICE = (
    "draws of a learned concentration have none; those of sigma > 0, and of BayesianAttention.bam() with the map "
    "(output_attentions=True, or need_weights=True), can be differentiated twice"
)
"""What to use for a second derivative."""
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
    """log S or W ``[B, H, T, S]``; the KL without the terms of the prior alone, weighted and summed, ``[B]``.

    With W it has log E[S], without gradient.
    """

    value: Tensor
    kl: Tensor
    log_mean: Tensor | None


def draw_weibull(
    log_mean: Tensor,
    rise: Tensor | None,
    uniform: Tensor,
    alpha: Tensor | None,
    weight: Tensor | None,
    options: WeibullConstants,
    *,
    normalise: bool = False,
) -> WeibullDraw:
    r"""Draws log S and sums its KL (Zhang et al. 2021, section 3.2), without the terms of the prior alone.

    .. math::
        k &= \rho r + e^{\mu} + \mathrm{floor}, \quad \log\lambda = \mu - \log\Gamma(1 + 1/k) \\
        \log S &= \log\lambda + \log(-\log u) / k \\
        \mathrm{KL} &= \sum w\,[\alpha (g / k - \log\lambda) + \log k + \beta e^{\mu}]

    for ``log_mean`` :math:`\mu`, ``rise`` r (None leaves its term out) and ``uniform`` u (overwritten), ``[B, H, T,
    S]``; ``alpha`` (None: no KL) and the 0/1 factors ``weight`` broadcast. Gradients flow to ``log_mean``, ``rise``
    and ``alpha``; a derivative of these raises ``RuntimeError``.

    ``normalise`` is for :math:`W = S / \sum_{keys} S` in place of log S, with :math:`\mu` the log-softmax of what
    stands for it. The gradient needs no maps but these two and ``rise``: k and the noise follow from them. The noise
    does so to :math:`k \epsilon`, so k should not be large.

    Example:
        >>> mu, u = torch.zeros(1, 1, 1, 2), torch.full((1, 1, 1, 2), 0.5)
        >>> draw = draw_weibull(mu, None, u, torch.ones(1), None, WeibullConstants(1.5, 0.0, 1.0))
        >>> draw.value  # k = 1: an exponential variable at its median, log(log 2)
        tensor([[[[-0.3665, -0.3665]]]])
    """
    return WeibullDraw(*_WeibullDraw.apply(log_mean, rise, uniform, alpha, weight, options, normalise))


class _WeibullDraw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_mean: Tensor,
        rise: Tensor | None,
        uniform: Tensor,
        alpha: Tensor | None,
        weight: Tensor | None,
        options: WeibullConstants,
        normalise: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.edges = edges_to(log_mean, rise, alpha)
        log_mean = torch.log_softmax(log_mean, dim=-1) if normalise else log_mean
        log_sum = log_mean.new_empty(*log_mean.shape[:-1], 1) if normalise else None
        # W takes the place of the noise, which nothing needs then.
        value = uniform.detach() if normalise else torch.empty_like(log_mean)
        kl = log_mean.new_zeros(len(log_mean))
        shape, slope = None if alpha is None else alpha.shape, None
        if alpha is not None:
            alpha = four_dimensional(alpha)
            slope = log_mean.new_zeros(len(kl), *alpha.shape[1:])
        weight = None if weight is None else four_dimensional(weight)
        terms = compiled_terms if sites_compile() else _terms
        for piece in pieces(log_mean):
            part, noise = None if rise is None else rise[piece], uniform[piece]
            target = noise if normalise else value[piece]
            found = terms(log_mean[piece], part, noise, target, options, alpha is not None)
            if log_sum is not None:
                log_sum[piece] = _normalise(value[piece])
            if alpha is None or slope is None or found is None:
                continue
            surprise, others = found
            if weight is not None:
                surprise.mul_(part_of(weight, piece))
                others.mul_(part_of(weight, piece))
            own = part_of(slope, piece)  # of kl by alpha
            surprise = surprise.sum_to_size(own.shape)
            own += surprise
            pull = (surprise * part_of(alpha, piece)).flatten(1).sum(dim=1)
            kl[piece[0]] += others.flatten(1).sum(dim=1).add_(pull)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.alpha_shape = options, shape
        drawn = (value, log_sum) if normalise else (uniform, None)
        ctx.save_for_backward(log_mean, rise, *drawn, alpha, weight, slope)
        if not normalise:
            return value, kl, None
        ctx.mark_non_differentiable(log_mean)
        return value, kl, log_mean

    @staticmethod
    @first_order(ADVICE)
    def backward(
        ctx: Any, grad_value: Tensor | None, grad_kl: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        maps: list[Any]
        *maps, alpha, weight, slope = ctx.saved_tensors
        log_mean, rise = maps[:2]
        grad_alpha: Tensor | None = None
        if alpha is None:
            grad_kl = None
        if ctx.needs_input_grad[3] and grad_kl is not None:
            by_datum = slope * grad_kl.view(-1, 1, 1, 1)
            grad_alpha = by_datum.sum_to_size(alpha.shape).view(ctx.alpha_shape)
        grad_mean, grad_rise = torch.empty_like(log_mean), None if rise is None else torch.empty_like(rise)
        gradients = compiled_gradients if sites_compile() else _gradients
        for piece in pieces(log_mean):
            share: Tensor | None = None
            if grad_kl is not None:
                share = grad_kl[piece[0]].view(-1, 1, 1, 1)
                share = share if weight is None else share * part_of(weight, piece)
            own = None if grad_value is None else grad_value[piece]
            pulls = own, share, None if alpha is None else part_of(alpha, piece)
            parts: list[Any] = [None if item is None else item[piece] for item in maps]
            grads = grad_mean[piece], None if grad_rise is None else grad_rise[piece]
            gradients(Drawn(*parts), pulls, grads, ctx.options)
            if maps[3] is not None:  # from the log-softmax back
                log_softmax = torch.ops.aten._log_softmax_backward_data
                log_softmax.out(grads[0], parts[0], -1, grads[0].dtype, out=grads[0])
        return grad_mean, grad_rise, None, grad_alpha, None, None, None


def _terms(
    log_mean: Tensor,
    rise: Tensor | None,
    uniform: Tensor,
    value: Tensor,
    options: WeibullConstants,
    with_kl: bool,
) -> tuple[Tensor, Tensor] | None:
    """Writes log S into ``value`` and, unless that is u, log(-log u) in place of u.

    Returns -E[log S], and log k + rate E[S], for the KL.
    """
    mean = finite_exp(log_mean)
    k = torch.add(mean, options.floor)
    if rise is not None:
        k.add_(rise, alpha=options.rho)
    inverse = k.reciprocal()
    scale = log_gamma_1p(inverse).neg_().add_(log_mean)
    noise = uniform.clamp_(min=torch.finfo(uniform.dtype).eps).log_().neg_().log_()
    torch.addcmul(scale, noise, inverse, out=value)
    if not with_kl:
        return None
    return inverse.mul_(EULER_MASCHERONI).sub_(scale), k.log_().add_(mean, alpha=options.rate)


def _normalise(logs: Tensor) -> Tensor:
    """Writes the softmax over the last dimension in place of its logits; their log-sum-exp, ``[..., 1]``."""
    largest = logs.amax(dim=-1, keepdim=True)
    torch.softmax(logs, dim=-1, out=logs)
    return largest.sub_(logs.amax(dim=-1, keepdim=True).log_())


def _gradients(
    drawn: Drawn,
    pulls: tuple[Tensor | None, Tensor | None, Tensor | None],
    grads: tuple[Tensor, Tensor | None],
    options: WeibullConstants,
) -> None:
    """Writes the gradients of ``log_mean`` and ``rise``, given those of the value and of the KL's terms, and alpha."""
    (grad_value, share, alpha), (grad_mean, grad_rise) = pulls, grads
    mean = finite_exp(drawn.log_mean)
    k = torch.add(mean, options.floor)
    if drawn.rise is not None:
        k.add_(drawn.rise, alpha=options.rho)
    inverse = k.reciprocal()
    if drawn.log_sum is None:
        log_gamma, digamma = inverse, digamma_1p(inverse)
    else:
        log_gamma, digamma = log_gamma_and_digamma_1p(inverse)
    if grad_value is None:
        to_scale, to_inverse = torch.zeros_like(k), torch.zeros_like(k)
    elif drawn.log_sum is None:
        to_scale, to_inverse = grad_value.clone(), grad_value * drawn.value
    else:
        weights = drawn.value
        to_scale = grad_value * weights
        to_scale.addcmul_(weights, to_scale.sum(dim=-1, keepdim=True), value=-1)
        noise = weights.clamp_min(torch.finfo(weights.dtype).tiny).log_().add_(drawn.log_sum)
        noise.sub_(drawn.log_mean).add_(log_gamma).mul_(k).clamp_(*NOISE_RANGE)
        to_inverse = noise.mul_(to_scale)
    if share is not None and alpha is not None:
        pull = share * alpha
        to_scale.sub_(pull)
        to_inverse.add_(pull, alpha=EULER_MASCHERONI)
    # From 1/k, and through log lambda = mu - lgamma(1 + 1/k), back to k.
    to_inverse.addcmul_(to_scale, digamma, value=-1.0)
    to_k = to_inverse.mul_(inverse).mul_(inverse).neg_()
    if share is not None:
        to_k.addcmul_(inverse, share)
    if grad_rise is not None:
        torch.mul(to_k, options.rho, out=grad_rise)
    if share is not None:
        to_k.add_(share, alpha=options.rate)
    torch.addcmul(to_scale, to_k, mean, out=grad_mean)


def draw_weights(
    scores: Tensor, positive: Positive, uniform: Tensor, options: WeibullConstants
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
    batch = len(positive.values)
    for rows, *inside in pieces(positive.values):
        base = positive.values[rows, *inside]
        least = options.rho * min(positive.smallest[rows]) + options.floor
        for first in range(0, len(scores), max(1, batch)):
            piece = slice(first + rows.start, first + rows.stop), *inside
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


def four_dimensional(tensor: Tensor) -> Tensor:
    """The tensor with leading dimensions of size 1, four dimensions in all."""
    return tensor.view((1,) * (4 - tensor.dim()) + tensor.shape)


def pieces(values: Tensor) -> Iterator[Places]:
    """Places of a map that stay in a cache; the whole of it off the CPU, where launching kernels is what costs."""
    rows = max(1, CPU_PIECE // max(1, values.shape[-1]))
    return cut(values.shape, rows if values.device.type == "cpu" else max(1, values.shape[:3].numel()))
