"""Whether two ways of rating the positions of an input rate them alike (Snell et al. 2021, section 3.1)."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from probattn.checks import check_instance
from probattn.probes.rows import rated, valid_positions


def agreement(u: Tensor, v: Tensor, top: float = 0.05, mask: Tensor | None = None) -> Tensor:
    r"""Whether the highest-rated position of ``u`` is among the highest-rated positions of ``v``, row by row.

    .. math:: A(u, v) = 1\bigl[\,|\{j : v_j > v_{\arg\max u}\}| < \mathrm{top} \cdot L\,\bigr]

    (Snell et al. 2021, Eq. 10, with top = 5%). It is not symmetric. Of several positions that share the maximum of
    ``u`` the first counts; positions of ``v`` that tie with it do not count against it, so that a constant ``v``
    agrees with everything. The share is taken as the decimal number that it is written as: 7% of 100 is 7, while
    ``0.07 * 100`` is more.

    Args:
        u: ``[..., L]``, for instance attention weights of every output word over the input.
        v: ``[..., L]``, for instance the lexical probe; broadcast against ``u``.
        top: share of the positions that count as highest, in (0, 1].
        mask: bool ``[..., L]``, True for a position that counts; L of the equation is their number.

    Returns:
        ``[...]`` float32, 0 or 1; NaN for a row without any position that counts.

    Raises:
        TypeError: a rating is not floating-point, or ``mask`` is not bool.
        ValueError: shapes do not fit, ``top`` is out of range, or a position that counts holds NaN.

    Example:
        >>> u = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]])
        >>> v = torch.tensor([[0.2, 0.5, 0.3], [0.2, 0.5, 0.3]])
        >>> agreement(u, v)
        tensor([1., 0.])
    """
    share = _share(top)
    u, v, mask = rated("agreement", u, v, mask)
    length = u.shape[-1]
    counted = mask.sum(dim=-1)  # [...]
    if length == 0:
        return torch.full(counted.shape, torch.nan, device=u.device)
    best = u.masked_fill(~mask, -torch.inf).amax(dim=-1, keepdim=True)
    place = torch.arange(length, device=u.device)
    first = torch.where((u == best) & mask, place, length - 1).amin(dim=-1, keepdim=True)
    higher = ((v > v.gather(-1, first)) & mask).sum(dim=-1)
    return (higher < _allowed(counted, share)).float().masked_fill(counted == 0, torch.nan)


def mean_agreement(
    u: Tensor,
    v: Tensor,
    top: float = 0.05,
    mask: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> Tensor:
    """Mean of :func:`agreement` over all rows, which for translation are the output words (Snell et al. 2021, 3.1).

    Args:
        u: ``[..., L]``.
        v: ``[..., L]``, broadcast against ``u``.
        top: share of the positions that count as highest, in (0, 1].
        mask: bool ``[..., L]``, True for a position that counts.
        query_mask: bool ``[...]``, True for a row that counts: an output word that is no padding.

    Returns:
        0-d float32 in [0, 1]: every row that counts and has a position that counts weighs the same; NaN without any.

    Raises:
        TypeError: a rating is not floating-point, or a mask is not bool.
        ValueError: as for :func:`agreement`, or ``query_mask`` does not fit.

    Example:
        >>> u = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]])
        >>> mean_agreement(u, torch.tensor([0.2, 0.5, 0.3]))
        tensor(0.5000)
    """
    each = agreement(u, v, top, mask)
    return each[valid_positions("mean_agreement", query_mask, each)].nanmean()


def random_agreement(lengths: Tensor, top: float = 0.05) -> Tensor:
    r"""Expectation of :func:`agreement` when ``v`` is in random order and has no ties: its random baseline.

    .. math:: \hat A = \lceil \mathrm{top} \cdot L \rceil / L

    (Snell et al. 2021, section 3.1): 5% only where 5% of L is a whole number, and 1 at L = 1.

    Args:
        lengths: integers ``[...]``, >= 0: the number of positions that count in each row, ``mask.sum(-1)``.
        top: as for :func:`agreement`.

    Returns:
        ``[...]`` float32; NaN where the length is 0. Its mean over output words stands beside a mean agreement.

    Raises:
        TypeError: ``lengths`` are no tensor of integers.
        ValueError: a length is negative, or ``top`` is out of range.

    Example:
        >>> random_agreement(torch.tensor([1, 14, 20, 21]))
        tensor([1.0000, 0.0714, 0.0500, 0.0952])
    """
    share = _share(top)
    check_instance("random_agreement", "lengths", lengths, Tensor, "a tensor of integers")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"random_agreement: expected integer lengths, got {lengths.dtype}")
    if bool((lengths < 0).any()):
        raise ValueError(f"random_agreement: expected lengths >= 0, got {int(lengths.min())}")
    return _allowed(lengths, share).float() / lengths  # 0 / 0 = NaN


def _share(top: float) -> Fraction:
    if not 0 < top <= 1:
        raise ValueError(f"agreement: expected top in (0, 1], got {top}")
    return Fraction(repr(float(top)))


def _allowed(lengths: Tensor, share: Fraction) -> Tensor:
    """The number of places among the highest: a whole number is below top * L if it is below its ceiling."""
    most = int(lengths.max()) if lengths.numel() else 0
    table = [-(-length * share.numerator // share.denominator) for length in range(most + 1)]
    return torch.tensor(table, device=lengths.device)[lengths.long()]
