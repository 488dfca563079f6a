"""The attention that would minimise the loss, where attention is mixed linearly (Snell et al. 2021, section A.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_instance
from probattn.probes.interior_point import Problem, solve
from probattn.probes.rows import valid_positions

_ENTRIES = 2**22
"""Logits that are worked on at once: 32 MiB in float64, a few times over."""


class OptimalAttention(NamedTuple):
    """Solutions of :func:`optimal_attention`, ``[...]`` being the shape of the targets, float64."""

    weights: Tensor
    """``[..., L]``, on the simplex; 0 at masked positions."""
    loss: Tensor
    """``[...]``: negative log-probability of the target under these weights, in nats."""
    gap: Tensor
    """``[...]``: a bound on how far the loss is above the least possible one, in nats."""


def optimal_attention(
    position_logits: Tensor,
    target: Tensor,
    query_logits: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 200,
) -> OptimalAttention:
    r"""Weights on the simplex that make the target most probable, with a certificate.

    .. math::
        \alpha^{\mathrm{opt}} = \arg\min_{\alpha \in \Delta} f(\alpha), \qquad
        f(\alpha) = -\log \sigma\Bigl(\sum_l \alpha_l \gamma_l + \gamma_s\Bigr)_y, \qquad
        \gamma_l = W h_l, \quad \gamma_s = W d_t

    (Snell et al. 2021, Eq. 32 to 37). It is convex because the softmax follows the mixture with nothing but linear
    maps between: the paper's variant :math:`p_t = \sigma(W(c_t + d_t))` and the classifier of Eq. 8 qualify, its
    translation model with a hidden layer (Eq. 2) does not. The minimum need not attend to the position with the
    largest probe, as Eq. 30 shows (below).

    Solved by a primal-dual interior-point method whose Newton systems have the size of L, many problems at once, in
    float64.
    The certificate is the Frank-Wolfe duality gap,
    :math:`f(\alpha) - f^* \le \sum_l \alpha_l \partial_l f - \min_l \partial_l f`.
    Where several weights are optimal (equal logits at two positions), they share what the others leave.

    Args:
        position_logits: gamma_l, ``[..., L, O]``; leading dimensions broadcast against those of ``target``, so that
            the logits of a sentence serve all its output words: ``[B, 1, L, O]`` for ``[B, T]``.
        target: y, integers ``[...]`` in 0 .. O - 1.
        query_logits: gamma_s, ``[..., O]``; None for 0.
        mask: bool ``[..., L]``, True for a position that may be attended.
        tolerance: largest gap, in nats, > 0.
        max_steps: Newton steps at most, >= 1; ten to thirty are usual, a hundred where logits differ by hundreds.

    Returns:
        Weights, losses and gaps; without gradients. A row without any position has weights 0 and gap 0, and the loss
        of ``query_logits`` alone.

    Raises:
        TypeError: logits or targets are no tensors, ``target`` is not of an integer type, or ``mask`` is not bool.
        ValueError: shapes do not fit, a number is out of its range, or a logit that counts is not finite.
        NotOptimalError: the gap is not below the tolerance after all steps; logits of a thousand and more do that.

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
    shape, (length, outputs) = target.shape, logits.shape[-2:]
    if not target.numel():
        empty = (query.new_zeros(item, dtype=torch.float64) for item in ((*shape, length), shape, shape))
        return OptimalAttention(*empty)
    if not shape:
        logits, query, target, valid = (item.unsqueeze(0) for item in (logits, query, target, valid))
    solutions = []
    for index in _chunks(target, max(1, _ENTRIES // (length * outputs))):
        problem = _problem(logits[index], query[index], target[index], valid[index])
        weights = solve(problem, tolerance, max_steps)
        solutions.append((weights, problem.loss(weights), problem.gap(weights)))
    weights, loss, gap = (torch.cat(item) for item in zip(*solutions, strict=True))
    return OptimalAttention(weights.view(*shape, length), loss.view(shape), gap.view(shape))


def _chunks(target: Tensor, size: int) -> Iterator[tuple[Tensor, ...]]:
    """Indices of ``size`` targets at a time; each picks ``[N, ...]`` of an expanded tensor."""
    numbers = torch.arange(target.numel(), device=target.device)
    for chunk in numbers.split(size):
        yield torch.unravel_index(chunk, target.shape)


def _problems(
    logits: Tensor, target: Tensor, query: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, query logits and mask, expanded to the shape of the targets."""
    for name, value in (("position_logits", logits), ("target", target)):
        check_instance("optimal_attention", name, value, Tensor, "a tensor")
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(f"optimal_attention: expected integer targets, got {target.dtype}")
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
    if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < outputs:
        raise ValueError(
            f"optimal_attention: expected targets in 0 .. {outputs - 1}, "
            f"got {int(target.min())} .. {int(target.max())}"
        )
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
