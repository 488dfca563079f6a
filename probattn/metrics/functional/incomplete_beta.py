"""The regularised incomplete beta function, which torch lacks."""

import torch
from torch import Tensor


def regularized_incomplete_beta(a: Tensor, b: Tensor, x: Tensor, complement: Tensor | None = None) -> Tensor:
    r"""The distribution function of Beta(a, b) at x: :math:`I_x(a, b) = B(x; a, b) / B(a, b)`.

    By the continued fraction DLMF 8.17.22 evaluated with Lentz's method, below the mean of the distribution, and
    by :math:`I_x(a, b) = 1 - I_{1-x}(b, a)` above it. Relative error in float64, measured at b = 1/2: 4e-14 for a up to
    10, 4e-12 up to 500 (log-gamma of large numbers loses digits).

    Args:
        a: positive, float32 or float64, any shape.
        b: positive, broadcastable with ``a``.
        x: in [0, 1], broadcastable with ``a``.
        complement: 1 - x where the caller knows it more exactly than the subtraction would give it.

    Returns:
        Values in [0, 1] of the broadcast shape; NaN where an argument is.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> regularized_incomplete_beta(one, 2 * one, 0.25 * one)  # 1 - (1 - x)^2
        tensor([0.4375], dtype=torch.float64)
    """
    y = 1 - x if complement is None else complement
    a, b, x, y = torch.broadcast_tensors(a, b, x, y)
    swapped = x > (a + 1) / (a + b + 2)
    a, b = torch.where(swapped, b, a), torch.where(swapped, a, b)
    x, y = torch.where(swapped, y, x), torch.where(swapped, x, y)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    log_front = torch.xlogy(a, x) + torch.xlogy(b, y) - log_beta
    value = log_front.exp() * _continued_fraction(a, b, x) / a
    return torch.where(swapped, 1 - value, value).clamp(0, 1)


def _continued_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """1 / (1 + d_1 / (1 + d_2 / (1 + ...))), two terms a step, until no element moves."""
    c = torch.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    if x.numel() == 0:
        return value
    largest = torch.maximum(a, b)
    limit = 100 + 10 * int(largest.nan_to_num(nan=1.0).max().clamp(max=1e10).sqrt().item())
    settled = torch.finfo(x.dtype).eps * (4 + largest / 64)  # rounding of a step grows with the parameters
    for m in range(1, limit):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            step = c * d
            value = value * step
        if not bool(((step - 1).abs() > settled).any()):  # NaN counts as settled
            return value
    raise AssertionError(
        f"no convergence in {limit} steps; largest parameter {largest.max().item():g}, "
        f"x in [{x.min().item():g}, {x.max().item():g}]"
    )


def _away_from_zero(values: Tensor) -> Tensor:
    tiny = torch.finfo(values.dtype).tiny
    return torch.where(values.abs() < tiny, tiny, values)
