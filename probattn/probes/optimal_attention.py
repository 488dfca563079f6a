"""The attention that would minimise the loss, if the output is linear in attention (Snell et al. 2021, section A.1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_instance
from probattn.probes.rows import check_targets, valid_positions

_ENTRIES = 2**22  # logits that are worked on at once: 32 MiB in float64, a few times over
_BOUNDARY = 0.99  # part of the way to the boundary that a step may take
_TINY = 1e-300  # least probability: its logarithm must be finite
_KEPT = 0.1  # part of itself that a probability keeps at least in a step
_COUNTED = 1e-8  # probabilities below this do not shorten a step; they matter to no sum


class NotOptimalError(RuntimeError):
    """The solver stopped while the gap, a bound on the excess loss, was still above the tolerance."""


class OptimalAttention(NamedTuple):
    """Solutions of :func:`optimal_attention` in float64; ``[...]`` is the shape of the targets."""

    weights: Tensor
    """Optimal attention weights ``[..., L]``, >= 0 with sum 1; 0 at masked positions."""
    loss: Tensor
    """Negative log-probability ``[...]`` of the target under these weights, in nats."""
    gap: Tensor
    """Upper bound ``[...]`` on the difference between ``loss`` and the minimal loss, in nats."""


def optimal_attention(
    position_logits: Tensor,
    target: Tensor,
    query_logits: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 200,
) -> OptimalAttention:
    r"""Attention weights (>= 0 with sum 1) that make the target most probable, with a bound on their excess loss.

    .. math::
        \alpha^{\mathrm{opt}} = \arg\min_{\alpha \in \Delta} f(\alpha), \qquad
        f(\alpha) = -\log \sigma\Bigl(\sum_l \alpha_l \gamma_l + \gamma_s\Bigr)_y, \qquad
        \gamma_l = W h_l, \quad \gamma_s = W d_t

    (Snell et al. 2021, Eq. 32 to 37). The problem is convex if only linear maps lie between the weighted mean of the
    h_l and the softmax: the paper's variant :math:`p_t = \sigma(W(c_t + d_t))` and the classifier of Eq. 8 qualify, its
    translation model with a hidden layer (Eq. 2) does not. The optimum need not attend to the position with the largest
    lexical probe; the example below is Eq. 30 of the paper.

    Solved in float64 by a primal-dual interior-point method, for many rows at once; each Newton system has L unknowns.
    The bound is the Frank-Wolfe duality gap,
    :math:`f(\alpha) - f^* \le \sum_l \alpha_l \partial_l f - \min_l \partial_l f`, with :math:`f^*` the minimum of f.
    If the optimum is not unique (equal logits at two positions), the solution spreads the weight over these positions.

    Args:
        position_logits: gamma_l, ``[..., L, O]``; leading dimensions broadcast against those of ``target``: the logits
            of a sentence, ``[B, 1, L, O]``, serve all its output words ``[B, T]``.
        target: y, integers ``[...]`` in 0 .. O - 1.
        query_logits: gamma_s, ``[..., O]``; None for 0.
        mask: bool ``[..., L]``, True for a position that may be attended.
        tolerance: largest gap, in nats, > 0.
        max_steps: maximum number of Newton steps, >= 1. Usual are 10 to 30, or 100 if logits differ by hundreds.

    Returns:
        Weights, losses and gaps; without gradients. A row without any position has weights 0 and gap 0, and the loss
        of ``query_logits`` alone.

    Raises:
        TypeError: logits or targets are not tensors, ``target`` is not of an integer type, or ``mask`` is not bool.
        ValueError: shapes do not fit, a number is out of its range, or a logit that counts is not finite.
        NotOptimalError: the gap is above the tolerance after ``max_steps``, as with logits of a thousand and more.

    Example:
        >>> gamma = torch.tensor([[0.0, 0.0, 0.0], [0.0, -10.0, 5.0], [0.0, 5.0, -10.0]])
        >>> optimum = optimal_attention(gamma, torch.tensor(0))
        >>> optimum.weights.round(decimals=4).abs(), bool(optimum.gap < 1e-8)
        (tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64), True)
    """
    if not tolerance > 0 or max_steps < 1:
        raise ValueError(
            f"optimal_attention: expected tolerance > 0 and max_steps >= 1, got {tolerance} and {max_steps}"
        )
    logits, query, valid = _problems(position_logits, target, query_logits, mask)
    target = target.long()
    shape, (length, outputs) = target.shape, logits.shape[-2:]
    if not target.numel():
        empty = (query.new_zeros(item, dtype=torch.float64) for item in ((*shape, length), shape, shape))
        return OptimalAttention(*empty)
    if not shape:
        logits, query, target, valid = (item.unsqueeze(0) for item in (logits, query, target, valid))
    solutions = []
    rows = torch.arange(target.numel(), device=target.device).split(max(1, _ENTRIES // (length * outputs)))
    for index in (torch.unravel_index(chunk, shape) for chunk in rows):
        problem = _problem(logits[index], query[index], target[index], valid[index])
        weights = solve(problem, tolerance, max_steps)
        solutions.append((weights, problem.loss(weights), problem.gap(weights)))
    weights, loss, gap = (torch.cat(item) for item in zip(*solutions, strict=True))
    return OptimalAttention(weights.view(*shape, length), loss.view(shape), gap.view(shape))


def _problems(
    logits: Tensor, target: Tensor, query: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, query logits and mask, expanded to the shape of the targets."""
    for name, value in (("position_logits", logits), ("target", target)):
        check_instance("optimal_attention", name, value, Tensor, "a tensor")
    check_targets("optimal_attention", target)
    if logits.ndim < 2 or 0 in logits.shape[-2:] or not logits.is_floating_point():
        raise ValueError(
            "optimal_attention: expected floating-point logits [..., L, O] with L, O >= 1, "
            f"got {logits.dtype} {list(logits.shape)}"
        )
    length, outputs = logits.shape[-2:]
    if query is None:
        query = logits.new_zeros(outputs)
    try:
        logits = logits.detach().expand(*target.shape, length, outputs)
        query = query.detach().expand(*target.shape, outputs)
    except RuntimeError:
        raise ValueError(
            f"optimal_attention: expected logits that fit targets {list(target.shape)} and {outputs} outputs, "
            f"got position_logits {list(logits.shape)} and query_logits {list(query.shape)}"
        ) from None
    check_targets("optimal_attention", target, outputs)
    return logits, query, valid_positions("optimal_attention", mask, logits[..., 0])


def _problem(logits: Tensor, query: Tensor, target: Tensor, valid: Tensor) -> Problem:
    """Subtracts the target's logit from the others, which changes no probability and leaves a log-sum-exp."""
    logits = logits.double().masked_fill(~valid.unsqueeze(-1), 0)
    if not bool(logits.isfinite().all() and query.isfinite().all()):
        raise ValueError(
            "optimal_attention: expected finite logits, got inf or NaN; mask positions without logits"
        )
    logits = logits - logits.gather(-1, target.view(-1, 1, 1).expand(-1, logits.shape[1], 1))
    query = query.double()
    return Problem(logits, query - query.gather(-1, target.unsqueeze(-1)), valid)


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
    """Weights whose gap is at most the tolerance, by a primal-dual interior-point method (Mehrotra 1992)."""
    # The softmax's probabilities are variables of their own: Newton's method linearises a logarithm, not a softmax.
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
    """The factor; a matrix that rounding made indefinite gets a larger diagonal, one that overflowed has none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    scale = matrix.diagonal(dim1=-2, dim2=-1)
    extra = 1e-14
    while extra < 1 and bool(failed.any()):
        larger = torch.diag_embed(torch.where(failed.unsqueeze(-1) > 0, extra * scale, 0))
        factor, failed = torch.linalg.cholesky_ex(matrix + larger)
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
