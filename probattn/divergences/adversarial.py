"""Divergences whose networks learn with them, adversarial and conditional transport; gradients reversed and scaled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_share
from probattn.divergences.tokens import TokenSets, compare
from probattn.first_order import with_gradients
from probattn.host import on_cpu


class _ScaledGradient(torch.autograd.Function):
    """Identity whose gradient is multiplied by a constant."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """Returns ``tensor``, of any shape, unchanged; multiplies its gradient by ``factor`` in the backward pass.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> scale_gradient(x, 0.25).sum().backward()
        >>> x.grad
        tensor([0.2500, 0.2500])
    """
    return _ScaledGradient.apply(tensor, factor)


def gradient_reversal(tensor: Tensor, strength: float = 1.0) -> Tensor:
    r"""Returns ``tensor`` unchanged; multiplies its gradient by ``-strength`` in the backward pass (Ganin et al. 2016).

    If a loss of the result is minimised, the parameters from which ``tensor`` was computed maximise it. An adversary
    in a loss needs two reversals: one on its output, so its parameters maximise the loss, and one on its input, so
    what feeds it minimises the loss again. The tensor may have any shape.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> gradient_reversal(x).sum().backward()
        >>> x.grad
        tensor([-1., -1.])
    """
    return scale_gradient(tensor, -strength)


def reversed_twice(network: nn.Module, tensor: Tensor) -> Tensor:
    """``network(tensor)`` whose parameters ascend the objective, while ``tensor`` descends it as without reversal."""
    return gradient_reversal(network(gradient_reversal(tensor)))


def adversarial(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    discriminator: nn.Module,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    r"""Adversarial divergence: the objective of a discriminator between queries and keys (Zhang et al. 2021b, Eq. 2).

    .. math:: L = \mathbb E_{q}[\log D(q)] + \mathbb E_{k}[\log(1 - D(k))], \qquad \min_{Q, K} \max_D L,

    with expectations over the tokens of one head and one example. Minimise the returned value: gradient reversal on
    input and output of the discriminator makes its parameters maximise L while queries and keys minimise it. L <= 0;
    if queries and keys have the same distribution, the best D is 1/2 and L is -2 log 2.

    ``discriminator`` maps ``[..., D]`` to logits ``[...]``, as :class:`Discriminator` does; otherwise ``ValueError``.
    The other arguments, the result ``[B, H]`` and the other errors are those of :func:`mmd`.

    Example:
        >>> import torch
        >>> from probattn.divergences import Discriminator
        >>> q, k = torch.randn(2, 3, 4, 5, 8)
        >>> adversarial(q, k, discriminator=Discriminator(8)).shape
        torch.Size([3, 4])
    """

    def measure(tokens: TokenSets) -> Tensor:
        both = tokens.both()
        logits = reversed_twice(discriminator, both)
        if logits.shape != both.shape[:-1]:
            raise ValueError(
                f"adversarial: expected the discriminator to give logits {list(both.shape[:-1])}, got "
                f"{list(logits.shape)}"
            )
        queries, keys = tokens.split(logits)  # [B, H, T], [B, H, S]
        log_query, log_key = F.logsigmoid(queries), F.logsigmoid(-keys)
        return (log_query * tokens.query_weight).sum(-1) + (log_key * tokens.key_weight).sum(-1)

    return compare(measure, query, key, mask, query_mask, key_mask)


CPU_ENTRIES, MOST_ENTRIES = 2**18, 2**26
"""Costs that are held at once: on a CPU, where they stay in a core's cache, and elsewhere; those of a head at least."""
EXCLUDED = -1e30  # logit of a token that does not count


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
    r"""Expected cost of learned transport in both directions (Zheng & Zhou 2021; Zhang et al. 2021b, Eq. 4).

    .. math::
        L &= w\, \mathbb E_{q}\, \mathbb E_{\pi_K(k \mid q)}[c(q, k)]
            + (1 - w)\, \mathbb E_{k}\, \mathbb E_{\pi_Q(q \mid k)}[c(q, k)], \\
        \pi_K(k_j \mid q_i) &\propto_j \exp(\tau_\phi(k_j)^\top \tau_\phi(q_i)), \qquad
        \pi_Q(q_i \mid k_j) \propto_i \exp(\tau_\phi(k_j)^\top \tau_\phi(q_i)), \\
        c(q, k) &= 1 - \cos(\tau_\eta(k), \tau_\eta(q)),

    over the tokens of one head and one example. Minimise the returned value: queries, keys and the navigator
    :math:`\tau_\phi` then minimise L, while gradient reversal on input and output of the critic :math:`\tau_\eta` makes
    its parameters maximise L. L lies in [0, 2]; a pair in which a critic vector is 0 costs 1. Second derivatives raise
    ``RuntimeError``. ``navigator`` maps ``[..., D]`` to ``[..., E]``, as :class:`Navigator` does, ``critic`` to
    ``[..., F]``, as :class:`Critic` does. ``forward_weight`` is w, the weight of the transport from queries to keys;
    outside [0, 1] it raises ``ValueError``. The other arguments, the result ``[B, H]`` and the other errors are those
    of :func:`mmd`.

    Example:
        >>> from probattn.divergences import Critic, Navigator
        >>> q, k = torch.randn(2, 3, 4, 5, 8)
        >>> conditional_transport(q, k, navigator=Navigator(8), critic=Critic(8)).shape
        torch.Size([3, 4])
    """
    check_share("conditional_transport", "forward_weight", forward_weight)

    def measure(tokens: TokenSets) -> Tensor:
        both = tokens.both()
        routes, points = navigator(both), reversed_twice(critic, both)
        sides = *tokens.split(routes), *tokens.split(points), tokens.query_weight, tokens.key_weight
        shape = tokens.query.shape[:2]
        flat = [side.expand(*shape, *side.shape[2:]).flatten(0, 1) for side in sides]
        with_gradient = torch.is_grad_enabled() and any(side.requires_grad for side in sides)
        return _transported(flat, forward_weight, with_gradient).view(shape)

    return compare(measure, query, key, mask, query_mask, key_mask)


def _directions(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors ``[N, T, F]`` and inverse lengths ``[N, T, 1]``, both 0 where a vector is 0 and has no direction."""
    squares = torch.linalg.vecdot(vectors, vectors).unsqueeze(-1)
    tiny = torch.finfo(vectors.dtype).tiny
    inverse = squares.clamp_min(tiny).rsqrt() * (squares > tiny)
    return vectors * inverse, inverse


def _transported(tensors: Sequence[Tensor], forward_weight: float, with_gradient: bool) -> Tensor:
    """The cost ``[N]`` of N problems, of routes, vectors and probabilities of queries and keys ``[N, T | S, ...]``."""
    # The gradient is proportional to that of the cost, so this pass computes it and keeps no matrix.
    weights = tensors[4:]
    cost = weights[0].new_zeros(len(weights[0]))
    gradients = [torch.empty_like(tensor) for tensor in tensors[:4]] if with_gradient else []
    limit = CPU_ENTRIES if on_cpu(cost) else MOST_ENTRIES
    step = max(1, limit // (weights[0].shape[1] * weights[1].shape[1]))
    with torch.no_grad():
        for start in range(0, len(cost), step):
            piece = [tensor[start : start + step] for tensor in tensors]
            into = [gradient[start : start + step] for gradient in gradients]
            cost[start : start + step] = _sweep(piece, forward_weight, into)
    return with_gradients(cost, tensors[:4], gradients) if with_gradient else cost


def _sweep(piece: Sequence[Tensor], forward_weight: float, gradients: Sequence[Tensor]) -> Tensor:
    """The costs of some problems; writes their gradients by routes and vectors where there is room for them."""
    route_query, route_key, query, key, *weights = piece
    (point_query, _), (point_key, _) = directions = _directions(query), _directions(key)
    excluded = [(weight == 0).to(weight.dtype) * EXCLUDED for weight in weights]
    logits = torch.baddbmm(excluded[1].unsqueeze(1), route_query, route_key.mT).add_(excluded[0].unsqueeze(2))
    likeness = point_query @ point_key.mT  # 1 less the cost
    costs, masses, slopes = [], [], []
    for weight, share, dim in zip(weights, (forward_weight, 1 - forward_weight), (2, 1), strict=True):
        if share:
            plan, mass_share = torch.softmax(logits, dim=dim), share * weight
            reached = (plan * likeness).sum(dim=dim)
            costs.append((mass_share * (1 - reached)).sum(dim=1))
            if gradients:
                slopes.append(plan * (mass_share * reached).unsqueeze(dim))
                masses.append(plan.mul_(mass_share.unsqueeze(dim)))
    cost, mass, slope = (reduce(Tensor.add_, items) if items else None for items in (costs, masses, slopes))
    assert cost is not None
    if mass is not None and slope is not None:
        slope.addcmul_(mass, likeness, value=-1)  # of the logits; that of the likeness is -mass
        mass.neg_()
        pairs = (slope, route_key), (slope.mT, route_query), (mass, point_key), (mass.mT, point_query)
        for (left, right), into in zip(pairs, gradients, strict=True):
            torch.bmm(left, right, out=into)
        for (unit, inverse), into in zip(directions, gradients[2:], strict=True):
            along = torch.linalg.vecdot(into, unit).unsqueeze(-1)
            into.addcmul_(unit, along, value=-1).mul_(inverse)
    return cost
