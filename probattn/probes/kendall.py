"""Rank correlation, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from probattn.probes.rows import rated

_PAIRS = 2**24
"""Pairs of positions that are compared at once: 64 MiB in float32."""


def kendall_tau(u: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Kendall's rank correlation of two ratings, row by row, corrected for ties.

    .. math::
        \tau_b = \frac{\sum_{i<j} \mathrm{sign}(u_i - u_j)\,\mathrm{sign}(v_i - v_j)}
            {\sqrt{|\{i<j : u_i \ne u_j\}| \cdot |\{i<j : v_i \ne v_j\}|}}

    (Kendall 1945; Snell et al. 2021, section A.4: its mean over output words takes the place of the agreement there).
    A random order has expectation 0. Costs L^2 per row.

    Args:
        u: ``[..., L]``.
        v: ``[..., L]``, broadcast against ``u``.
        mask: bool ``[..., L]``, True for a position that counts.

    Returns:
        ``[...]`` float64 in [-1, 1]; NaN for a row in which ``u`` or ``v`` is constant or fewer than two positions
        count.

    Raises:
        TypeError: a rating is not floating-point, or ``mask`` is not bool.
        ValueError: shapes do not fit, or a position that counts holds NaN.

    Example:
        >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
        tensor(0.3333, dtype=torch.float64)
    """
    u, v, mask = rated("kendall_tau", u, v, mask)
    length = u.shape[-1]
    if length < 2:
        return torch.full(u.shape[:-1], torch.nan, dtype=torch.float64, device=u.device)
    rows = max(1, _PAIRS // length**2)
    parts = zip(*(each.reshape(-1, length).split(rows) for each in (u, v, mask)), strict=True)
    found = [_tau(*part) for part in parts]
    return torch.cat(found).view(u.shape[:-1])


def _tau(u: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    pairs = (mask.unsqueeze(-1) & mask.unsqueeze(-2)).float()  # [N, L, L], each pair twice
    orders = [_order(each) * pairs for each in (u, v)]
    both = (orders[0] * orders[1]).sum(dim=(-1, -2), dtype=torch.float64)
    untied = [order.abs().sum(dim=(-1, -2), dtype=torch.float64) for order in orders]
    return both / (untied[0] * untied[1]).sqrt()


def _order(rating: Tensor) -> Tensor:
    """Signs of all differences, by comparison: differences of infinities have none."""
    later, earlier = rating.unsqueeze(-1), rating.unsqueeze(-2)
    return (later > earlier).float() - (later < earlier).float()
