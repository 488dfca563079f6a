"""Agreement of two ratings of the positions of an input (Snell et al. 2021, section 3.1): in the maximum, in rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_instance
from probattn.probes.rows import rated, valid_positions


def agreement(u: Tensor, v: Tensor, top: float = 0.05, mask: Tensor | None = None) -> Tensor:
    r"""Whether, in each row, the highest-rated position of ``u`` is among the highest-rated positions of ``v``.

    .. math:: A(u, v) = 1\bigl[\,|\{j : v_j > v_{\arg\max u}\}| < \mathrm{top} \cdot L\,\bigr]

    (Snell et al. 2021, Eq. 10, with top = 5%). The agreement is not symmetric. If several positions share the maximum
    of ``u``, the first is used; positions of ``v`` with the same value as this position do not count as higher, so a
    constant ``v`` agrees with every ``u``. ``top * L`` is computed in decimals: 7% of 100 is 7, while the float
    ``0.07 * 100`` is more than 7.

    Args:
        u: first rating ``[..., L]``, for instance the attention weights of each output word over the input.
        v: second rating ``[..., L]``, for instance the lexical probe; broadcast against ``u``.
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
    indices = torch.arange(length, device=u.device)
    first = torch.where((u == best) & mask, indices, length - 1).amin(dim=-1, keepdim=True)
    higher = ((v > v.gather(-1, first)) & mask).sum(dim=-1)
    return (higher < _allowed(counted, share)).float().masked_fill(counted == 0, torch.nan)


def mean_agreement(
    u: Tensor, v: Tensor, top: float = 0.05, mask: Tensor | None = None, query_mask: Tensor | None = None
) -> Tensor:
    """Mean of :func:`agreement` over all rows, in translation over output words (Snell et al. 2021, section 3.1).

    ``query_mask``, bool ``[...]``, is True for a row that counts: an output word that is not padding. The other
    arguments and the errors are those of :func:`agreement`.

    Returns:
        0-d float32 in [0, 1]: mean over the rows that count and have a position that counts; NaN without such a row.

    Example:
        >>> u = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]])
        >>> mean_agreement(u, torch.tensor([0.2, 0.5, 0.3]))
        tensor(0.5000)
    """
    agreements = agreement(u, v, top, mask)
    return agreements[valid_positions("mean_agreement", query_mask, agreements)].nanmean()


def random_agreement(lengths: Tensor, top: float = 0.05) -> Tensor:
    r"""Agreement by chance: the expectation of :func:`agreement` if ``v`` is in random order and has no ties.

    .. math:: \hat A = \lceil \mathrm{top} \cdot L \rceil / L

    (Snell et al. 2021, section 3.1). With ``top`` = 5% it is 5% only if 5% of L is a whole number; at L = 1 it is 1.

    Args:
        lengths: L, integers ``[...]``, >= 0: the number of positions that count in each row, ``mask.sum(-1)``.
        top: share of the positions that count as highest, in (0, 1].

    Returns:
        ``[...]`` float32; NaN for length 0. Its mean over output words is the baseline of :func:`mean_agreement`.

    Raises:
        TypeError: ``lengths`` is not a tensor of integers.
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
    """Number of positions that count as highest: a whole number is below top * L if it is below its ceiling."""
    longest = int(lengths.max()) if lengths.numel() else 0
    table = [-(-length * share.numerator // share.denominator) for length in range(longest + 1)]
    return torch.tensor(table, device=lengths.device)[lengths.long()]


_PAIRS = 2**24  # pairs of positions that are compared at once: 64 MiB in float32


def kendall_tau(u: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Kendall's rank correlation tau-b of two ratings in each row, corrected for ties.

    .. math::
        \tau_b = \frac{\sum_{i<j} \mathrm{sign}(u_i - u_j)\,\mathrm{sign}(v_i - v_j)}
            {\sqrt{|\{i<j : u_i \ne u_j\}| \cdot |\{i<j : v_i \ne v_j\}|}}

    (Kendall 1945). Section A.4 of Snell et al. 2021 uses its mean over output words instead of the agreement. Its
    expectation for a random order is 0. Costs L^2 per row. Arguments and errors are those of :func:`agreement`.

    Returns:
        ``[...]`` float64 in [-1, 1]; NaN for a row in which ``u`` or ``v`` is constant or fewer than two positions
        count.

    Example:
        >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
        tensor(0.3333, dtype=torch.float64)
    """
    u, v, mask = rated("kendall_tau", u, v, mask)
    length = u.shape[-1]
    if length < 2:
        return torch.full(u.shape[:-1], torch.nan, dtype=torch.float64, device=u.device)
    rows = max(1, _PAIRS // length**2)
    chunks = zip(*(item.reshape(-1, length).split(rows) for item in (u, v, mask)), strict=True)
    return torch.cat([_tau(*chunk) for chunk in chunks]).view(u.shape[:-1])


def _tau(u: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    pairs = (mask.unsqueeze(-1) & mask.unsqueeze(-2)).float()  # [N, L, L], each pair twice
    orders = [_order(item) * pairs for item in (u, v)]
    both = (orders[0] * orders[1]).sum(dim=(-1, -2), dtype=torch.float64)
    untied = [order.abs().sum(dim=(-1, -2), dtype=torch.float64) for order in orders]
    return both / (untied[0] * untied[1]).sqrt()


def _order(rating: Tensor) -> Tensor:
    """Signs of all differences, by comparison: differences of infinities have none."""
    later, earlier = rating.unsqueeze(-1), rating.unsqueeze(-2)
    return (later > earlier).float() - (later < earlier).float()


class EvaluatedStep(NamedTuple):
    """One evaluation of the second run of :func:`contextualized_agreement`."""

    step: int
    """Training steps done, >= 0."""
    performance: float
    """Measure of the model's quality, such as accuracy or BLEU, in any unit."""
    agreement: float
    """Mean agreement of this step's attention with the attention at the end of the first run."""


@dataclass(frozen=True)
class ContextualizedAgreement:
    """Result of :func:`contextualized_agreement`; printed as in the paper's tables, with a star if not reached.

    Attributes:
        performance: xi, that of the first evaluated step whose agreement exceeds the given one, or of the last step.
        step: the step of ``performance``.
        reached: whether the agreement of some step exceeds the given one.
    """

    performance: float
    step: int
    reached: bool

    def __str__(self) -> str:
        return f"{self.performance:.2f}{'' if self.reached else '*'}"


def contextualized_agreement(
    agreement: float, second_run: Iterable[EvaluatedStep | tuple[int, float, float]]
) -> ContextualizedAgreement:
    r"""Performance of a second run when its attention first agrees with the first run's by more than ``agreement``.

    .. math:: \xi(u, v) = \hat p\bigl(\inf\{\tau : A(\alpha, \hat\alpha(\tau)) > A(u, v)\}\bigr)

    (Snell et al. 2021, Eq. 11), with :math:`\alpha` the final attention of the first run, :math:`\hat\alpha(\tau)` and
    :math:`\hat p(\tau)` attention and performance of the second run at step :math:`\tau`. The runs differ only by the
    seed; even their final attentions do not agree perfectly. xi puts an agreement into context: how far a model must be
    trained until its attention agrees with another's by more than A(u, v). Only the evaluated steps are searched.

    Args:
        agreement: A(u, v), the mean over output words.
        second_run: (step, performance, agreement) of every evaluation of the second run, in order of steps.

    Returns:
        The performance, its step, and whether the agreement was exceeded at all. If it was not, the performance is that
        of the last step, which the paper marks with a star.

    Raises:
        ValueError: there is no evaluated step, a step is negative, the steps do not rise, or an agreement or
            performance is NaN.

    Example:
        >>> run = [(0, 0.10, 0.07), (50, 0.31, 0.22), (100, 0.43, 0.40), (500, 0.66, 0.71)]
        >>> print(contextualized_agreement(0.31, run), contextualized_agreement(0.80, run))
        0.43 0.66*
    """
    run = [EvaluatedStep(*item) for item in second_run]
    if not run:
        raise ValueError("contextualized_agreement: expected evaluated steps of a second run, got none")
    _, performances, agreements = zip(*run, strict=True)
    for what, values in (("an agreement", (agreement, *agreements)), ("a performance", performances)):
        if any(map(math.isnan, values)):
            raise ValueError(
                f"contextualized_agreement: expected numbers, got {what} of NaN (no output word counted?)"
            )
    if run[0].step < 0:
        raise ValueError(f"contextualized_agreement: expected steps >= 0, got {run[0].step}")
    for before, after in pairwise(run):
        if after.step <= before.step:
            raise ValueError(
                f"contextualized_agreement: expected rising steps, got {after.step} after {before.step}; sort them"
            )
    for item in run:
        if item.agreement > agreement:
            return ContextualizedAgreement(item.performance, item.step, reached=True)
    return ContextualizedAgreement(run[-1].performance, run[-1].step, reached=False)
