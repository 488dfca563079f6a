r"""How much each unnormalised weight alone moves what its query reads.

A query reads :math:`o = \sum_j W_j v_j` with :math:`W_j = S_j / \sum_i S_i`. Where :math:`x = S_j / \mathrm E[S_j]`
varies and the other weights stay at their expectations,

.. math:: o(x) - o(1) = W_j (v_j - o(1))\, f(x), \qquad f(x) = \frac{x - 1}{1 + W_j (x - 1)},

so that Var[f] is exact where the first order, Var[x], holds for a small W alone.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.special import log_ndtr
from torch import Tensor

from probattn.distributions import LogNormal, Weibull, log_gamma_1p_reciprocal

Noise = Literal["normal", "exact", "truncated"]
"""Normal variables, or logarithms of exponential ones, exact or of the middle of their range."""
SMALL_WEIGHT = 0.02
"""Weights below it are expanded to first order: Var[f] is then Var[x] to a few percent."""
LARGEST_WEIGHT = 1 - 1e-4
NODES = 12
TRUNCATION = (0.1, 0.9)
"""Range of the uniform noise in Zhang et al. 2021, section 3.3."""


class Variance(NamedTuple):
    """Of some weights: ``first``, Var[x], broadcastable, and ``effect``, Var[f]."""

    first: Tensor
    effect: Tensor


def variances(noise: Noise, spread: Tensor, weights: Tensor) -> Variance:
    """Var[x] and Var[f] for weights of E[S], ``[N]``, and scales or concentrations of S, ``[N]`` or a number."""
    if noise == "truncated":  # which does not have the variance of the Weibull distribution
        first = _by_quadrature(noise, spread, torch.zeros_like(spread))
    elif noise == "normal":
        first = LogNormal(torch.zeros_like(spread), spread, validate_args=False).squared_cv
    else:
        first = Weibull(
            log_mean=torch.zeros_like(spread), concentration=spread, validate_args=False
        ).squared_cv
    large = (weights > SMALL_WEIGHT).nonzero().squeeze(1)
    effect = first.expand(weights.shape).clone()
    own = weights[large].clamp_(max=LARGEST_WEIGHT)
    effect[large] = _by_quadrature(noise, spread[large] if spread.dim() else spread, own)
    return Variance(first, effect)


def _by_quadrature(noise: Noise, spread: Tensor, weights: Tensor) -> Tensor:
    """Var[f] for x of the given scale or concentration."""
    if noise == "normal":
        factor, shift = spread, -spread.square() / 2
    else:
        factor, shift = spread.reciprocal(), -log_gamma_1p_reciprocal(spread)
    nodes, probabilities = _nodes(noise)
    if noise == "truncated":
        powers = torch.stack([torch.exp(node * factor) for node in nodes], dim=-1)
        shift = -(powers * powers.new_tensor(probabilities)).sum(dim=-1).log()
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    for node, probability in zip(nodes, probabilities, strict=True):
        excess = torch.exp(shift + node * factor).sub_(1)
        effect = excess / (weights * excess).add_(1)
        first.add_(effect, alpha=probability)
        second.addcmul_(effect, effect, value=probability)
    return second.sub_(first.square_()).clamp_(min=0)


@cache
def _nodes(noise: Noise) -> tuple[list[float], list[float]]:
    """Values of log S less its location, over its spread, and their probabilities: Gaussian quadrature."""
    if noise == "truncated":
        points, probabilities = np.polynomial.legendre.leggauss(NODES)
        low, high = TRUNCATION
        values = np.log(-np.log(low + (points + 1) / 2 * (high - low)))
    else:
        values, probabilities = np.polynomial.hermite_e.hermegauss(NODES)
        if noise == "exact":
            values = np.log(-log_ndtr(values))  # of an exponential variable
    return values.tolist(), (probabilities / probabilities.sum()).tolist()
