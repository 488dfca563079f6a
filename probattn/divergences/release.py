"""Conditional transport as the code of alignment attention computes it: between the heads of each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_share
from probattn.divergences.adversarial import reversed_twice
from probattn.divergences.networks import Critic, ReleaseHighway
from probattn.divergences.tokens import TokenSets, compare


class ReleaseCritic(Critic):
    """The critic of the authors' code: :class:`Critic` with ReLU and the highway of ``Discriminator(kind="release")``.

    Example:
        >>> ReleaseCritic(8, 16, 16)(torch.randn(2, 4, 5, 8)).shape
        torch.Size([2, 4, 5, 16])
    """

    _highway = ReleaseHighway


def head_transport(
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
    r"""Conditional transport between the heads of each token (adver_type "act" of the authors' code).

    At a token with queries :math:`q_i` and keys :math:`k_j` of its H heads,

    .. math::
        L = w\, \frac1H \sum_i \sum_j \pi(k_j \mid q_i)\, c(q_i, k_j)
            + (1 - w)\, \frac1H \sum_j \sum_i \pi(q_i \mid k_j)\, c(q_i, k_j), \qquad
        c(q, k) = |\hat\tau_\eta(q) - \hat\tau_\eta(k)|,

    with the outputs of critic and navigator scaled to norm 1, :math:`\hat\tau`, and plans :math:`\pi \propto
    \exp(\hat\tau_\phi(q)^\top \hat\tau_\phi(k))`. Four points differ from :func:`conditional_transport`, the paper's
    form: L compares the heads of a token instead of the tokens of a head; the cost is a distance instead of 1 minus a
    cosine; the navigator's vectors have norm 1; and its parameters maximise L as the critic's do.

    Entry h of the result ``[B, H]`` is the mean over real tokens of H times the terms of query h and key h in L; the
    mean over heads is the mean of L. Arguments and other errors are those of :func:`conditional_transport`, with as
    many keys as queries. A token is real if its query and its key are unmasked.

    Raises:
        ValueError: the numbers of queries and keys differ.

    Example:
        >>> from probattn.divergences import Navigator
        >>> q, k = torch.randn(2, 3, 4, 5, 8)
        >>> head_transport(q, k, navigator=Navigator(8), critic=ReleaseCritic(8)).shape
        torch.Size([3, 4])
    """
    check_share("head_transport", "forward_weight", forward_weight)
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"head_transport: expected as many keys as queries, whose heads it compares, got {query.shape[2]} queries "
            f"and {key.shape[2]} keys; leave cross-attention out (attention='self')"
        )

    def measure(tokens: TokenSets) -> Tensor:
        both = tokens.both()
        routes, points = (
            [
                side.transpose(1, 2)
                for side in tokens.split(F.normalize(reversed_twice(network, both), dim=-1))
            ]
            for network in (navigator, critic)
        )
        logits = routes[0] @ routes[1].mT  # [B, T, H of queries, H of keys]
        likeness = points[0] @ points[1].mT
        cost = (2 - 2 * likeness).clamp_min(1e-12).sqrt()
        directions = zip((forward_weight, 1 - forward_weight), (-1, -2), strict=True)
        reached = sum(share * (cost * logits.softmax(dim)).sum(dim) for share, dim in directions)  # [B, T, H]
        assert isinstance(reached, Tensor)
        both_masks = [mask for mask in (tokens.query_mask, tokens.key_mask) if mask is not None]
        if any(mask.shape[1] > 1 and bool((mask != mask[:, :1]).any()) for mask in both_masks):
            raise ValueError(
                "head_transport: expected one mask for all heads, which it compares, got masks that differ by head; "
                "give [B, T]"
            )
        masks = [mask[:, 0] for mask in both_masks]
        if not masks:
            return reached.mean(dim=1)
        real = torch.stack(masks).all(dim=0).to(reached.dtype).unsqueeze(-1)  # [B, T, 1]
        return (reached * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)

    return compare(measure, query, key, mask, query_mask, key_mask)
