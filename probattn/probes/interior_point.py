"""A primal-dual interior-point method for log-sum-exp of an affine map, over the simplex."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_BOUNDARY = 0.99
"""Part of the way to the boundary that a step may take."""
_TINY = 1e-300
"""Least probability: its logarithm must be finite."""
_KEPT = 0.1
"""Part of itself that a probability keeps at least in a step."""
_COUNTED = 1e-8
"""Probabilities below this do not shorten a step; they matter to no sum."""


class NotOptimalError(RuntimeError):
    """The solver stopped before its certificate reached the tolerance."""


class Problem(NamedTuple):
    r"""N problems: minimise :math:`f(w) = \log \sum_o \exp(\sum_l w_l \gamma_{l,o} + s_o)` over the simplex."""

    logits: Tensor
    """gamma, float64 ``[N, L, O]``; 0 at masked positions."""
    offset: Tensor
    """s, float64 ``[N, O]``."""
    valid: Tensor
    """bool ``[N, L]``: where weights may be."""

    def at(self, rows: Tensor) -> Problem:
        """Some of the problems."""
        return Problem(*(item[rows] for item in self))

    def mixed(self, weights: Tensor) -> Tensor:
        """The affine map, ``[N, O]``."""
        return torch.baddbmm(self.offset.unsqueeze(1), weights.unsqueeze(1), self.logits).squeeze(1)

    def loss(self, weights: Tensor) -> Tensor:
        """f, ``[N]``."""
        return self.mixed(weights).logsumexp(dim=-1)

    def slope(self, shares: Tensor) -> Tensor:
        """The gradient of f where the softmax is ``shares`` ``[N, O]``: ``[N, L]``."""
        return torch.bmm(self.logits, shares.unsqueeze(-1)).squeeze(-1)

    def minimum(self, slope: Tensor) -> Tensor:
        """The smallest slope of a valid position, ``[N, 1]``; 0 without any."""
        smallest = slope.masked_fill(~self.valid, torch.inf).amin(dim=-1, keepdim=True)
        return torch.where(smallest.isinf(), 0, smallest)

    def gap(self, weights: Tensor) -> Tensor:
        r"""The Frank-Wolfe gap :math:`\langle \nabla f, w \rangle - \min_l \partial_l f \ge f(w) - f^*`, ``[N]``."""
        slope = self.slope(self.mixed(weights).softmax(dim=-1))
        above = slope - self.minimum(slope)  # a difference of two sums would lose digits
        return (weights * above).sum(dim=-1)


class _Point(NamedTuple):
    """Weights and shares > 0, each with sum 1; multipliers of the bounds > 0; a multiplier of the weights' sum."""

    weights: Tensor  # [N, L]
    bounds: Tensor  # [N, L]
    level: Tensor  # [N, 1]
    shares: Tensor  # [N, O]


class _System(NamedTuple):
    """The linearised conditions at a point, factorised; both steps of an iteration solve with it."""

    problem: Problem
    point: _Point
    slope: Tensor  # [N, L]
    lag: Tensor  # [N, O]: by how much the shares' logarithms differ from those of the softmax
    factor: Tensor  # [N, L, L]


def solve(problem: Problem, tolerance: float, max_steps: int) -> Tensor:
    r"""Weights whose gap is at most the tolerance.

    The softmax's probabilities p are variables of their own, with :math:`\log p = \gamma^T w + s - \log Z` among the
    conditions, so that Newton's method linearises a logarithm instead of a softmax and large logits cost few steps
    more. Each iteration predicts and corrects (Mehrotra 1992) with one factorisation.
    """
    best = problem.valid / problem.valid.sum(dim=-1, keepdim=True).clamp(min=1).double()
    gap = problem.gap(best)
    rows = (gap > tolerance).nonzero().squeeze(-1)  # of the problems that are not solved yet
    current = problem.at(rows)
    point = _start(current, best[rows])
    for _ in range(max_steps):
        if not len(rows):
            break
        point = _step(current, point)
        gaps = current.gap(point.weights)
        better = gaps < gap[rows]
        best[rows[better]], gap[rows[better]] = point.weights[better], gaps[better]
        going = gap[rows] > tolerance
        rows, current, point = rows[going], current.at(going), _Point(*(item[going] for item in point))
    if len(rows):
        raise NotOptimalError(
            f"optimal_attention: expected gaps of at most {tolerance:g} nats, got up to {gap.max().item():.3g} "
            f"in {len(rows)} problems after {max_steps} steps; raise tolerance or max_steps"
        )
    return best


def _start(problem: Problem, weights: Tensor) -> _Point:
    """Every condition holds but complementarity."""
    shares = problem.mixed(weights).softmax(dim=-1).clamp(min=_TINY)
    slope = problem.slope(shares)
    level = problem.gap(weights).unsqueeze(-1) - problem.minimum(slope)
    return _Point(weights, torch.where(problem.valid, slope + level, 0), level, shares)


def _step(problem: Problem, point: _Point) -> _Point:
    system = _linearised(problem, point)
    counted = problem.valid.sum(dim=-1, keepdim=True)
    product = (point.weights * point.bounds).sum(dim=-1, keepdim=True) / counted  # [N, 1]
    straight = _direction(system, torch.zeros_like(product), torch.zeros_like(point.weights))
    ahead = [
        value + _largest_step(value, direction).clamp(max=1) * direction
        for value, direction in zip(point[:2], straight[:2], strict=True)
    ]
    predicted = (ahead[0] * ahead[1]).sum(dim=-1, keepdim=True) / counted
    aim = (predicted / product).clamp(max=1).pow(3) * product
    move = _direction(system, aim, straight.weights * straight.bounds)
    counting = torch.where(point.shares > _COUNTED, move.shares, 0)
    pairs = ((point.weights, move.weights), (point.bounds, move.bounds), (point.shares, counting))
    size = torch.cat([_largest_step(*pair) for pair in pairs], dim=-1).amin(dim=-1, keepdim=True)
    size = (_BOUNDARY * size).clamp(max=1)
    weights, bounds, level, shares = (value + size * item for value, item in zip(point, move, strict=True))
    shares = torch.maximum(shares, _KEPT * point.shares).clamp(min=_TINY)
    return _Point(_normalised(weights), bounds, level, _normalised(shares))


def _linearised(problem: Problem, point: _Point) -> _System:
    logarithms = problem.mixed(point.weights).log_softmax(dim=-1)
    slope = problem.slope(point.shares)
    centred = (problem.logits - slope.unsqueeze(-1)) * point.shares.sqrt().unsqueeze(1)
    centred = torch.where(problem.valid.unsqueeze(-1), centred, 0)
    ratio = torch.where(problem.valid, point.bounds / torch.where(problem.valid, point.weights, 1), 1)
    matrix = torch.bmm(centred, centred.mT) + torch.diag_embed(ratio)
    return _System(problem, point, slope, logarithms - point.shares.log(), _cholesky(matrix))


def _cholesky(matrix: Tensor) -> Tensor:
    """The factor; a matrix that rounding made indefinite gets a larger diagonal, and a step that is less exact.

    A matrix that overflowed has no factor, for any addition: its problem goes no further, and keeps its gap.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    scale = matrix.diagonal(dim1=-2, dim2=-1)
    extra = 1e-14
    while extra < 1 and bool(failed.any()):
        factor, failed = torch.linalg.cholesky_ex(
            matrix + torch.diag_embed(torch.where(failed.unsqueeze(-1) > 0, extra * scale, 0))
        )
        extra *= 100
    return factor


def _direction(system: _System, aim: Tensor, product: Tensor) -> _Point:
    """Newton's step to weights * bounds = aim, less the second-order ``product`` that the last one foretold."""
    problem, point = system.problem, system.point
    weights = torch.where(problem.valid, point.weights, 1)
    target = (aim - product) / weights
    lagging = point.shares * system.lag
    residual = system.slope + point.level - target
    residual = residual + problem.slope(lagging) - system.slope * lagging.sum(dim=-1, keepdim=True)
    sides = torch.stack((residual, torch.ones_like(residual)), dim=-1) * problem.valid.unsqueeze(-1)
    of_rest, of_ones = torch.cholesky_solve(sides, system.factor).unbind(dim=-1)  # [N, L] each
    level = -of_rest.sum(dim=-1, keepdim=True) / of_ones.sum(dim=-1, keepdim=True)
    move = -of_rest - level * of_ones
    bounds = torch.where(problem.valid, target - point.bounds - point.bounds / weights * move, 0)
    rise = torch.bmm(move.unsqueeze(1), problem.logits).squeeze(1) + system.lag
    shares = point.shares * (rise - (point.shares * rise).sum(dim=-1, keepdim=True))
    return _Point(move, bounds, level, shares)


def _largest_step(value: Tensor, direction: Tensor) -> Tensor:
    """Largest step before an entry of a value is 0, ``[N, 1]``."""
    return torch.where(direction < 0, -value / direction, torch.inf).amin(dim=-1, keepdim=True)


def _normalised(value: Tensor) -> Tensor:
    return value / value.sum(dim=-1, keepdim=True)
