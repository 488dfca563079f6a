"""Layers that change gradients and nothing else: reversal, scaling, and a value weighted apart from its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
