"""Which floating-point type a measure computes in and answers in."""

import torch
from torch import Tensor


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The type of sums over many examples: float64, or float32 on devices without float64 (Apple's MPS).

    Args:
        device: where the sum lives.

    Returns:
        ``torch.float64`` or ``torch.float32``.

    Example:
        >>> accumulation_dtype(torch.device("cpu"))
        torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64


def at_least_float32(values: Tensor) -> Tensor:
    """``values`` in float32 if they were of lower precision, else unchanged.

    Args:
        values: floating-point tensor of any shape.

    Returns:
        The same shape, float32 or float64.

    Raises:
        TypeError: ``values`` is not floating-point.

    Example:
        >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    if not values.is_floating_point():
        raise TypeError(f"expected a floating-point tensor, got {values.dtype}: convert it with .float()")
    return values if values.dtype == torch.float64 else values.float()
