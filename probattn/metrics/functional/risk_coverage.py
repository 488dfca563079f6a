"""Selective prediction: the risk of what is answered when the least certain inputs are left out."""

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.metrics.functional.ood_auroc import check_scores
from probattn.metrics.functional.precision import accumulation_dtype


class RiskCoverage(NamedTuple):
    """A risk-coverage curve.

    Attributes:
        coverage: share of inputs answered, ``[N]``: 1/N, 2/N, ..., 1.
        risk: mean loss of the inputs answered, ``[N]``; the last is the risk without selection.
    """

    coverage: Tensor
    risk: Tensor


def risk_coverage_curve(uncertainty: Tensor, loss: Tensor) -> RiskCoverage:
    r"""Risk of the i most certain predictions, for every i (El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017).

    .. math:: \mathrm{risk}(i/N) = \frac{1}{i} \sum_{j \le i} \mathrm{loss}_{(j)}

    where :math:`(1), (2), \dots` order the inputs by rising uncertainty. Within a tie the curve is the
    expectation over random order, so it depends neither on the order of the data nor on the sort.

    Args:
        uncertainty: ``[N]``, higher meaning less certain, such as
            :func:`~probattn.metrics.functional.least_confidence`.
        loss: ``[N]``; 0 or 1 for errors, or any non-negative loss; bool is read as 0 and 1.

    Returns:
        Coverage and risk, float32 ``[N]``; empty for N = 0.

    Raises:
        TypeError: ``uncertainty`` is not floating-point.
        ValueError: the shapes differ or a value is NaN.

    Example:
        >>> risk_coverage_curve(torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.tensor([0.0, 1.0, 0.0, 1.0])).risk
        tensor([0.0000, 0.0000, 0.3333, 0.5000])
    """
    risk = _selective_risk(*_checked(uncertainty, loss))
    size = risk.numel()
    coverage = torch.arange(1, size + 1, device=risk.device, dtype=risk.dtype) / max(size, 1)
    return RiskCoverage(coverage.float(), risk.float())


def area_under_risk_coverage(uncertainty: Tensor, loss: Tensor) -> Tensor:
    r"""Area under the risk-coverage curve (AURC): the mean risk over coverages 1/N, ..., 1; lower is better.

    .. math:: \mathrm{AURC} = \frac{1}{N} \sum_i \mathrm{risk}(i/N)

    (Geifman et al. 2019), ties as in :func:`risk_coverage_curve`.

    Args:
        uncertainty: ``[N]``, higher meaning less certain.
        loss: ``[N]``, see :func:`risk_coverage_curve`.

    Returns:
        0-d float32; NaN for N = 0.

    Raises:
        TypeError: ``uncertainty`` is not floating-point.
        ValueError: the shapes differ or a value is NaN.

    Example:
        >>> area_under_risk_coverage(torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
        tensor(0.2083)
    """
    return _selective_risk(*_checked(uncertainty, loss)).mean().float()


def excess_area_under_risk_coverage(uncertainty: Tensor, loss: Tensor) -> Tensor:
    r"""Excess AURC: how much worse the ranking is than the best one for the same losses; 0 is best.

    .. math:: \mathrm{EAURC} = \mathrm{AURC}(\mathrm{uncertainty}) - \mathrm{AURC}(\mathrm{loss})

    (Geifman et al. 2019), the best area exact for the N at hand instead of its limit
    :math:`r + (1 - r) \log(1 - r)` for an error rate r. Not influenced by accuracy alone, as AURC is.

    Args:
        uncertainty: ``[N]``, higher meaning less certain.
        loss: ``[N]``, see :func:`risk_coverage_curve`.

    Returns:
        0-d float32, non-negative; NaN for N = 0.

    Raises:
        TypeError: ``uncertainty`` is not floating-point.
        ValueError: the shapes differ or a value is NaN.

    Example:
        >>> loss = torch.tensor([0.0, 1.0, 0.0, 1.0])
        >>> excess_area_under_risk_coverage(torch.tensor([0.1, 0.4, 0.2, 0.3]), loss)
        tensor(0.)
        >>> excess_area_under_risk_coverage(torch.zeros(4), loss)
        tensor(0.2917)
    """
    uncertainty, loss = _checked(uncertainty, loss)
    excess = _selective_risk(uncertainty, loss).mean() - _selective_risk(loss, loss).mean()
    return excess.clamp(min=0).float()


def _checked(uncertainty: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    uncertainty = check_scores(uncertainty, "uncertainty")
    if loss.shape != uncertainty.shape:
        raise ValueError(
            f"loss: expected the shape of uncertainty, {list(uncertainty.shape)}, got {list(loss.shape)}"
        )
    loss = loss.to(accumulation_dtype(loss.device))
    return uncertainty, check_scores(loss, "loss")


def _selective_risk(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Expected mean loss [N] of the i lowest uncertainties under random order within ties."""
    size = uncertainty.numel()
    ranked, order = uncertainty.sort()
    _, block, sizes = torch.unique_consecutive(ranked, return_inverse=True, return_counts=True)
    totals = torch.zeros(sizes.numel(), dtype=loss.dtype, device=loss.device)
    totals = totals.scatter_add(0, block, loss[order])  # [blocks]
    smoothed = (totals / sizes)[block]  # [N], each loss replaced by the mean of its tie
    number = torch.arange(1, size + 1, device=loss.device, dtype=loss.dtype)
    return smoothed.cumsum(dim=0) / number
