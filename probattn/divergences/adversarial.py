"""The adversarial divergence between queries and keys, and the layers that reverse and scale gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.divergences.tokens import TokenSets, compare


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
    """The tensor itself; its gradient is multiplied by ``factor`` on the way back.

    Args:
        tensor: any shape.
        factor: any number.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> scale_gradient(x, 0.25).sum().backward()
        >>> x.grad
        tensor([0.2500, 0.2500])
    """
    scaled: Tensor = _ScaledGradient.apply(tensor, factor)
    return scaled


def gradient_reversal(tensor: Tensor, strength: float = 1.0) -> Tensor:
    r"""The tensor itself; its gradient is multiplied by ``-strength`` on the way back (Ganin et al. 2016).

    Modules before the layer ascend the objective that those behind it descend. An adversary inside a
    differentiable function has one on its output, so that its own parameters ascend, and another on its input, so that
    whatever feeds it descends again.

    Args:
        tensor: any shape.
        strength: any number.

    Returns:
        A view of ``tensor``.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> gradient_reversal(x).sum().backward()
        >>> x.grad
        tensor([-1., -1.])
    """
    return scale_gradient(tensor, -strength)


class GradientReversal(nn.Module):
    """:func:`gradient_reversal` as a layer.

    Args:
        strength: gradients are multiplied by ``-strength``.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False), GradientReversal())
        >>> layer(torch.ones(1, 2)).sum().backward()
        >>> layer[0].weight.grad
        tensor([[-1., -1.]])
    """

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = strength

    def extra_repr(self) -> str:
        """The strength, for ``print(network)``."""
        return f"strength={self.strength}"

    def forward(self, tensor: Tensor) -> Tensor:
        """The tensor, its gradient reversed."""
        return gradient_reversal(tensor, self.strength)


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
        queries, keys = tokens.split(logits)  # [B, H, T], [B, H, S]
        log_query, log_key = F.logsigmoid(queries), F.logsigmoid(-keys)
        return (log_query * tokens.query_weight).sum(-1) + (log_key * tokens.key_weight).sum(-1)

    return compare(measure, query, key, mask, query_mask, key_mask)
