"""Functions with an analytic gradient, whose own derivative raises instead of being partial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


def edges_to(*inputs: Tensor | None) -> list[Tensor]:
    """Empty tensors with the inputs' edges in the graph; they hold no memory of the inputs."""
    with torch.enable_grad():
        return [item.unsqueeze(0)[:0].clone() for item in inputs if item is not None and item.requires_grad]


def first_order(advice: str) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Decorates an autograd function's backward pass, outside autocast; ``advice`` is for a second derivative."""
    # torch's ``once_differentiable`` raises only where its node is reached; ``torch.autograd.grad`` of a function of a
    # gradient prunes it, and the second derivative lacks a part. The node that is put here has edges to the inputs,
    # which the forward pass leaves in ``ctx.edges``.

    def decorate(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @wraps(backward)
        def once(ctx: Any, *pulls: Tensor | None) -> Gradients:
            device = next((item.device.type for item in (*pulls, *ctx.edges) if item is not None), "cpu")
            with torch.no_grad(), torch.autocast(device, enabled=False):
                gradients = backward(ctx, *pulls)
            sources = [pull for pull in pulls if pull is not None and pull.requires_grad]
            if not torch.is_grad_enabled() or not (sources or ctx.edges):
                return gradients
            return _First.apply(advice, len(gradients), *gradients, *sources, *ctx.edges)

        return once

    return decorate


class _First(torch.autograd.Function):
    """Gradients as they are, with edges to what they depend on."""

    @staticmethod
    def forward(ctx: Any, advice: str, count: int, *tensors: Tensor | None) -> Gradients:
        ctx.advice = advice
        return tuple(None if tensor is None else tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Gradients:
        raise RuntimeError(f"expected one derivative, got a derivative of a gradient; {ctx.advice}")


def with_gradients(value: Tensor, inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """``value`` ``[N]`` or a number, with gradients ``[N, ...]`` by the inputs that are known already."""
    return _Known.apply(value, gradients, *inputs)


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor | None], *inputs: Tensor) -> Tensor:
        ctx.edges = edges_to(*inputs)
        ctx.present = [gradient is not None for gradient in gradients]
        ctx.save_for_backward(*(gradient for gradient in gradients if gradient is not None))
        return value.clone()

    @staticmethod
    @first_order("the gradient is computed with the value; write the function in differentiable operations")
    def backward(ctx: Any, *pulls: Tensor) -> Gradients:
        saved = iter(ctx.saved_tensors)
        gradients = (next(saved) if present else None for present in ctx.present)
        pull = pulls[0]
        return None, None, *(None if item is None else item * _widened(pull, item) for item in gradients)


def _widened(pull: Tensor, like: Tensor) -> Tensor:
    return pull.view(*pull.shape, *[1] * (like.dim() - pull.dim()))
