"""Bidirectional conditional transport between queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_share
from probattn.divergences.gradient_reversal import reversed_twice
from probattn.divergences.tokens import TokenSets, compare


def conditional_transport(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    navigator: nn.Module,
    critic: nn.Module,
    forward_weight: float = 0.5,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    r"""Expected cost of transport by learned conditional plans, both ways (Zheng & Zhou 2021; Zhang et al., Eq. 4).

    .. math::
        L &= w\, \mathbb E_{q}\, \mathbb E_{\pi_K(k \mid q)}[c(q, k)]
            + (1 - w)\, \mathbb E_{k}\, \mathbb E_{\pi_Q(q \mid k)}[c(q, k)], \\
        \pi_K(k_j \mid q_i) &\propto_j \exp(\tau_\phi(k_j)^\top \tau_\phi(q_i)), \qquad
        \pi_Q(q_i \mid k_j) \propto_i \exp(\tau_\phi(k_j)^\top \tau_\phi(q_i)), \\
        c(q, k) &= 1 - \cos(\tau_\eta(k), \tau_\eta(q)),

    over the tokens of one head and one sample. Minimise the returned value: queries, keys and the navigator
    :math:`\tau_\phi` descend, and gradient reversal on both sides of the critic :math:`\tau_\eta` lets its parameters
    ascend. Since the cost is bilinear in the normalised critic vectors, each direction is an attention with these as
    values, and no matrix of costs is ever made. L lies in [0, 2]; a critic vector of length 0 costs 1.

    Args:
        query: ``[B, H, T, D]``.
        key: ``[B, H, S, D]``.
        mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, True for a token that counts; for both where T = S.
        navigator: maps ``[..., D]`` to ``[..., E]``, such as :class:`Navigator`.
        critic: maps ``[..., D]`` to ``[..., F]``, such as :class:`Critic`.
        forward_weight: w in [0, 1], the share of the direction from queries to keys.
        query_mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, in place of ``mask``.
        key_mask: bool ``[B, S]`` or ``[B, 1 | H, S]``, in place of ``mask``.

    Returns:
        ``[B, H]``, at least float32; 0 without any query or key that counts.

    Raises:
        TypeError: a mask is not bool.
        ValueError: shapes do not fit, or a weight outside [0, 1].

    Example:
        >>> from probattn.divergences import Critic, Navigator
        >>> q, k = torch.randn(2, 3, 4, 5, 8)
        >>> conditional_transport(q, k, navigator=Navigator(8), critic=Critic(8)).shape
        torch.Size([3, 4])
    """
    check_share("conditional_transport", "forward_weight", forward_weight)

    def measure(tokens: TokenSets) -> Tensor:
        both = tokens.both()
        route_query, route_key = tokens.parts(navigator(both))
        point_query, point_key = tokens.parts(_directions(reversed_twice(critic, both)))
        cost = both.new_zeros(())
        if forward_weight > 0:
            reached = _expected(route_query, route_key, point_key, tokens.key_mask)  # [B, H, T, F]
            cost = cost + forward_weight * _cost(point_query, reached, tokens.query_weight)
        if forward_weight < 1:
            reached = _expected(route_key, route_query, point_query, tokens.query_mask)  # [B, H, S, F]
            cost = cost + (1 - forward_weight) * _cost(point_key, reached, tokens.key_weight)
        return cost

    return compare(measure, query, key, mask, query_mask, key_mask)


def _expected(route: Tensor, routes: Tensor, points: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of ``points`` under the plan of each row of ``route``; an empty set is taken whole, for finite numbers."""
    allowed = None
    if mask is not None:
        allowed = (mask | ~mask.any(dim=-1, keepdim=True)).unsqueeze(-2)  # [B, 1 | H, 1, S]
    return F.scaled_dot_product_attention(route, routes, points, attn_mask=allowed, scale=1.0)


def _directions(vectors: Tensor) -> Tensor:
    """Unit vectors; a vector of length 0 has no direction: it stays 0, without gradient."""
    squares = torch.linalg.vecdot(vectors, vectors)
    least = torch.finfo(vectors.dtype).tiny
    inverse = squares.clamp_min(least).rsqrt() * (squares > least)
    return vectors * inverse.unsqueeze(-1)


def _cost(points: Tensor, reached: Tensor, weight: Tensor) -> Tensor:
    return ((1 - torch.linalg.vecdot(points, reached)) * weight).sum(dim=-1)
