r"""How much each unnormalised weight alone moves what its query reads.

A query reads :math:`o = \sum_j W_j v_j` with :math:`W_j = S_j / \sum_i S_i`. Where :math:`x = S_j / \mathrm E[S_j]`
varies and the other weights stay at their expectations,

.. math:: o(x) - o(1) = W_j (v_j - o(1))\, f(x), \qquad f(x) = \frac{x - 1}{1 + W_j (x - 1)},

so that Var[f] is the variance of what this weight does alone. Its first order, Var[x], serves where
:math:`W_j \,\mathrm E[(x - 1)^3]` is small beside Var[x]: for a wide law at much smaller weights than for a narrow one.
log(Var[f] / Var[x]) is a smooth function of the weight and the concentration: it is integrated on a grid once, and
interpolated for each weight.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor
from torch.nn.functional import grid_sample

from probattn.distributions import LogNormal, Weibull
from probattn.distributions.log_space import finite_exp

Noise = Literal["normal", "exact", "truncated"]
"""Normal variables, or logarithms of exponential ones, exact or of the middle of their range."""
WEIGHTS = (1e-7, 1 - 1e-4)  # the grid's weights, evenly spaced in logit W; those outside count as its ends
CONCENTRATIONS = (0.05, 1000.0)
"""Its concentrations where they are learned, evenly spaced in log k, likewise; else the one of the site."""
GRID = (192, 256)  # concentrations and weights; interpolation adds 1% to the error of Var[f] at most
LARGEST = 340.0  # log x above which f is 1/W; x squared is in the range of float64
LEAST = 1e-28  # least Var[f], which tells laws so wide that f hardly ever varies from constants in float32
TRUNCATION = (0.1, 0.9)  # range of the uniform noise in Zhang et al. 2021, section 3.3


SPREAD_ENDS = (math.log(CONCENTRATIONS[0]), math.log(CONCENTRATIONS[1]))
WEIGHT_ENDS = (math.log(WEIGHTS[0] / (1 - WEIGHTS[0])), math.log(WEIGHTS[1] / (1 - WEIGHTS[1])))


class Variance(NamedTuple):
    """Of some weights: ``first``, Var[x], broadcastable, and ``effect``, Var[f]."""

    first: Tensor
    effect: Tensor


def variances(noise: Noise, spread: Tensor | float, weights: Tensor) -> Variance:
    """Var[x] and Var[f] for weights of E[S], ``[N]``, and scales or concentrations of S, ``[N]`` or a number."""
    several = isinstance(spread, Tensor)
    table = _table_like(noise, None if several else float(spread), weights.dtype, weights.device)
    spread = spread if isinstance(spread, Tensor) else weights.new_full((), spread)
    inside = spread.clamp(*CONCENTRATIONS) if several else spread
    columns = _coordinates(weights.clamp(*WEIGHTS).logit(), WEIGHT_ENDS)
    grid = torch.stack(torch.broadcast_tensors(columns, _coordinates(inside.log(), SPREAD_ENDS)), dim=-1)
    sampled = grid_sample(table, grid[None, None], padding_mode="border", align_corners=True)
    log_ratio, log_first = sampled[0, :, 0]
    if noise == "truncated":  # which does not have the variance of the Weibull distribution
        first = log_first.exp()
    else:
        log_exact = _law(noise, spread).log_squared_cv
        first = finite_exp(log_exact)
        log_first = log_exact.clamp(*_ends()) if several else log_first
    # Var[x] may be beyond the type's range where Var[f] is not.
    return Variance(first, (log_ratio + log_first).exp().clamp_min(LEAST))


def _coordinates(values: Tensor, ends: tuple[float, float]) -> Tensor:
    """Coordinates in a grid, from -1 to 1."""
    return (values - ends[0]) * (2 / (ends[1] - ends[0])) - 1


def _law(noise: Noise, spread: Tensor) -> LogNormal | Weibull:
    """Of x."""
    if noise == "normal":
        return LogNormal(torch.zeros_like(spread), spread, validate_args=False)
    return Weibull(log_mean=torch.zeros_like(spread), concentration=spread, validate_args=False)


@lru_cache(maxsize=1)
def _ends() -> tuple[float, float]:
    """log Var[x] at the ends of the grid of concentrations, the smaller first: it falls with k."""
    largest, smallest = _law(
        "exact", torch.tensor(CONCENTRATIONS, dtype=torch.float64)
    ).log_squared_cv.tolist()
    return smallest, largest


@lru_cache(maxsize=8)
def _table_like(noise: Noise, spread: float | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The table where it is needed."""
    return torch.from_numpy(_table(noise, spread)).to(device, dtype)


@lru_cache(maxsize=32)
def _table(noise: Noise, spread: float | None) -> np.ndarray:
    """log(Var[f] / Var[x]) and log Var[x] of a site's scale or concentration, or of the grid's, ``[1, 2, K, W]``."""
    logits = np.linspace(*WEIGHT_ENDS, GRID[1])[:, None]
    weights = 1 / (1 + np.exp(-logits))
    spreads = np.exp(np.linspace(*SPREAD_ENDS, GRID[0])) if spread is None else [spread]
    rows = []
    for one in spreads:
        excess, probabilities = _excess(noise, float(one))
        effect = excess / (1 + weights * excess)
        mean = effect @ probabilities
        variance = (effect - mean[:, None]) ** 2 @ probabilities
        first = np.full_like(variance, excess**2 @ probabilities)
        rows.append(np.log([variance / first, first]))
    return np.stack(rows, axis=1)[None]


def _excess(noise: Noise, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """x - 1 at the points of a quadrature, and their probabilities."""
    if noise == "truncated":
        points, probabilities = np.polynomial.legendre.leggauss(64)
        low, high = TRUNCATION
        logs = np.log(-np.log(low + (points + 1) / 2 * (high - low))) / spread
        probabilities = probabilities / 2
        return np.expm1(logs - np.log(np.exp(logs) @ probabilities)), probabilities
    # The trapezoidal rule, whose error for analytic functions falls exponentially with the step.
    if noise == "normal":
        points = np.arange(-10, 2 * spread + 10, 0.1)
        log_density, logs = -(points**2) / 2, spread * points - spread**2 / 2
    else:
        points = np.arange(-40, np.log1p(2 / spread) + 3, 0.15)
        log_density, logs = points - np.exp(points), points / spread - gammaln(1 + 1 / spread)
    density = np.exp(log_density)
    return np.expm1(np.minimum(logs, LARGEST)), density / density.sum()
