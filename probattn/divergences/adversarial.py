"""The adversarial divergence between queries and keys."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from probattn.divergences.gradient_reversal import reversed_twice
from probattn.divergences.tokens import TokenSets, compare


def adversarial(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    discriminator: nn.Module,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    r"""Adversarial divergence: the objective of a discriminator between queries and keys (Zhang et al. 2021, Eq. 2).

    .. math:: L = \mathbb E_{q}[\log D(q)] + \mathbb E_{k}[\log(1 - D(k))], \qquad
        \min_{Q, K} \max_D L,

    the expectations over the tokens of one head and one sample. Minimise the returned value: gradient reversal on both
    sides of the discriminator lets its parameters ascend while queries and keys, both, descend. L <= 0; where nothing
    can be distinguished the best D is 1/2 and L is -2 log 2.

    Args:
        query: ``[B, H, T, D]``.
        key: ``[B, H, S, D]``.
        mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, True for a token that counts; for both where T = S.
        discriminator: maps ``[..., D]`` to logits ``[...]``, such as :class:`Discriminator`.
        query_mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, in place of ``mask``.
        key_mask: bool ``[B, S]`` or ``[B, 1 | H, S]``, in place of ``mask``.

    Returns:
        ``[B, H]``, at least float32; 0 without any query or key that counts.

    Raises:
        TypeError: a mask is not bool.
        ValueError: shapes do not fit.

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
        queries, keys = tokens.parts(logits)  # [B, H, T], [B, H, S]
        log_query, log_key = F.logsigmoid(queries), F.logsigmoid(-keys)
        return (log_query * tokens.query_weight).sum(-1) + (log_key * tokens.key_weight).sum(-1)

    return compare(measure, query, key, mask, query_mask, key_mask)
