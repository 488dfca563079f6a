r"""Draws of S and W together, for predictions.

:func:`probattn.sites.fused.draw_weibull` works with log S, which is safe for every concentration. Where k >= 1/2
nothing can leave float32's range: the noise to the power of 1/k stays between 1e-14 and 256, and the rest are
probabilities. There S takes half the passes over memory, and W is S over its sum instead of a softmax of log S.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probattn.distributions.log_space import finite_exp
from probattn.distributions.special import log_gamma_1p, reciprocal_gamma_1p
from probattn.sites.fused import CPU_PIECE, WeibullOptions
from probattn.sites.shared import Positive

LARGEST_INVERSE = 2.0
"""The largest 1 / k that is not worked out in logarithms."""


def draw_weights(
    scores: Tensor, positive: Positive, uniform: Tensor, options: WeibullOptions
) -> tuple[Tensor, Tensor]:
    r"""Draws S and normalises it over keys.

    .. math::
        p = \mathrm{softmax}(\Phi), \quad k = \rho\,\mathrm{softplus}(z) + p + \mathrm{floor}, \quad
        S = p\,\frac{(-\log u)^{1/k}}{\Gamma(1 + 1/k)}, \quad W = S / \textstyle\sum_{keys} S

    (Zhang et al. 2021, section 3.2, with normalised scores). Not differentiable.

    Args:
        scores: Phi, masked, ``[P * B, H, T, S]``, float32; W takes its place.
        positive: softplus(z), ``[B, H, T, S]``, the same for all P draws.
        uniform: u in [0, 1), of the shape of ``scores``; S takes its place.
        options: rho and floor.

    Returns:
        S >= 0, finite, and W, in the tensors given: a map more would be taken from the system and given back at every
        call, which costs as much as the softmax.

    Example:
        >>> scores, half = torch.zeros(1, 1, 1, 2), torch.full((1, 1, 1, 2), 0.5)
        >>> value, weights = draw_weights(scores, Positive(half), half.clone(), WeibullOptions(1.0, 0.0, 1.0))
        >>> value.log()  # k = 1: half of an exponential variable at its median
        tensor([[[[-1.0597, -1.0597]]]])
        >>> weights
        tensor([[[[0.5000, 0.5000]]]])
    """
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
