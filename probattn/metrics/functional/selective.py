"""Selective prediction: risk against coverage, and PAvPU, accuracy against certainty."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from probattn.metrics.functional.examples import uncertainty
from probattn.metrics.functional.inputs import (
    InputKind,
    accumulation_dtype,
    check_option,
    check_scores,
    label_mask,
    mean_probabilities,
    require_draws,
)
from probattn.metrics.functional.significance import top_two_p_value


class RiskCoverage(NamedTuple):
    """A risk-coverage curve of N inputs.

    Attributes:
        coverage: share of inputs that are answered, ``[N]``: 1/N, 2/N, ..., 1.
        risk: mean loss of the answered inputs, ``[N]``; the last entry is that of all inputs.
    """

    coverage: Tensor
    risk: Tensor


def risk_coverage_curve(uncertainty: Tensor, loss: Tensor) -> RiskCoverage:
    r"""Risk of the i most certain predictions, for every i (El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017).

    .. math:: \mathrm{risk}(i/N) = \frac{1}{i} \sum_{j \le i} \mathrm{loss}_{(j)}

    where :math:`(1), (2), \dots` order the inputs by rising uncertainty. Within a tie the curve is the
    expectation over random order, so it depends neither on the order of the data nor on the sort.

    Args:
        uncertainty: uncertainty of each prediction ``[N]``, higher meaning less certain, such as
            :func:`~probattn.metrics.functional.least_confidence`.
        loss: loss of each prediction ``[N]``: 1 for an error and 0 otherwise, or any non-negative loss; bool is read as
            0 and 1.

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

    (Geifman et al. 2019), with arguments, errors and ties as in :func:`risk_coverage_curve`.

    Returns:
        0-d float32; NaN for N = 0.

    Example:
        >>> area_under_risk_coverage(torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
        tensor(0.2083)
    """
    return _selective_risk(*_checked(uncertainty, loss)).mean().float()


def excess_area_under_risk_coverage(uncertainty: Tensor, loss: Tensor) -> Tensor:
    r"""Excess AURC: AURC minus that of the best ranking of the same losses, the ranking by the loss; 0 is best.

    .. math:: \mathrm{EAURC} = \mathrm{AURC}(\mathrm{uncertainty}) - \mathrm{AURC}(\mathrm{loss})

    (Geifman et al. 2019). The second term is exact for N examples; the paper uses its limit
    :math:`r + (1 - r) \log(1 - r)` for an error rate r. Arguments and errors are those of
    :func:`risk_coverage_curve`.

    Returns:
        0-d float32, non-negative; NaN for N = 0.

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


CertaintyCriterion = Literal["p_value", "predictive_entropy", "mutual_information"]
"""Measure of :func:`pavpu`; a prediction counts as certain if the measure is below the threshold."""


def pavpu(
    preds: Tensor,
    target: Tensor,
    *,
    threshold: float | Sequence[float] | None = None,
    criterion: CertaintyCriterion = "p_value",
    inputs: InputKind = "probabilities",
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Share of predictions that are accurate and certain, or inaccurate and uncertain.

    .. math:: \mathrm{PAvPU} = \frac{n_\mathrm{ac} + n_\mathrm{iu}}{n}

    with :math:`n_\mathrm{ac}` predictions accurate and certain and :math:`n_\mathrm{iu}` inaccurate and uncertain
    ("patch accuracy versus patch uncertainty", Mukhoti & Gal 2018). The prediction is the most probable class of the
    mean over draws; it is certain if the ``criterion`` is below the ``threshold``:

    - ``"p_value"`` (default, threshold 0.05): p-value of Welch's t-test between the draws of the two classes with the
      highest mean (Fan et al. 2020). Draws that do not vary have p = 0. With a single draw every prediction is
      therefore certain, and PAvPU is the accuracy; for a deterministic network, use draws from its dropout.
    - ``"predictive_entropy"``, ``"mutual_information"``: in nats (Mukhoti & Gal 2018); the threshold must be given.

    ``preds`` are draws ``[P, N, C]``; ``threshold`` is a number, or a sequence of K numbers. The other arguments are
    those of :func:`~probattn.metrics.functional.reliability_diagram`.

    Returns:
        float32 in [0, 1]: 0-d for one threshold, ``[K]`` for a sequence; NaN without any example.

    Raises:
        TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
        ValueError: there is no dimension of draws, a value is not as described, or a threshold is missing.

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> pavpu(draws, torch.tensor([0, 1]))  # right and certain; wrong and uncertain
        tensor(1.)
        >>> pavpu(draws, torch.tensor([0, 1]), threshold=[0.001, 0.05, 0.9])
        tensor([0.5000, 1.0000, 0.5000])
    """
    thresholds = check_thresholds(threshold, criterion)
    counts = certainty_counts(
        preds,
        target,
        thresholds=thresholds,
        criterion=criterion,
        inputs=inputs,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    value = pavpu_from_counts(counts)
    return value if isinstance(threshold, Sequence) else value.squeeze(0)


def certainty_counts(
    preds: Tensor,
    target: Tensor,
    *,
    thresholds: Sequence[float],
    criterion: CertaintyCriterion = "p_value",
    inputs: InputKind = "probabilities",
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Number of predictions in each of the cases accurate or not, certain or not, at each threshold.

    ``thresholds`` are K numbers; the other arguments and the errors are those of :func:`pavpu`.

    Returns:
        Counts, int64 ``[K, 2, 2]``, with entries ``[k, accurate, certain]``; they add up over batches and processes.

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> certainty_counts(draws, torch.tensor([0, 1]), thresholds=[0.05])
        tensor([[[1, 0],
                 [0, 1]]])
    """
    require_draws(preds, "pavpu")
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)  # [N, C]
    mask = label_mask(target, *mean.shape, ignore_index=ignore_index, validate_args=validate_args)
    if criterion == "p_value":
        measure = top_two_p_value(preds, inputs=inputs, validate_args=False)  # [N]
    else:
        measure = uncertainty(preds, criterion, inputs=inputs, validate_args=False)
    limits = torch.tensor(thresholds, dtype=accumulation_dtype(mean.device), device=mean.device)
    certain = measure < limits.unsqueeze(-1)  # [K, N]
    accurate = (mean.argmax(dim=-1) == target).expand_as(certain)
    by_certainty = torch.stack([~certain, certain], dim=-1)  # [K, N, 2]
    rows = [(by_certainty & (subset & mask).unsqueeze(-1)).sum(dim=1) for subset in (~accurate, accurate)]
    return torch.stack(rows, dim=1)


def pavpu_from_counts(counts: Tensor) -> Tensor:
    """PAvPU, float32 ``[K]``, from the counts of :func:`certainty_counts`; add those of several batches.

    Example:
        >>> pavpu_from_counts(torch.tensor([[[2, 1], [1, 4]]]))
        tensor([0.7500])
    """
    agree = (counts[:, 0, 0] + counts[:, 1, 1]).to(accumulation_dtype(counts.device))
    return (agree / counts.sum(dim=(1, 2))).float()


def check_thresholds(
    threshold: float | Sequence[float] | None, criterion: CertaintyCriterion
) -> tuple[float, ...]:
    """The thresholds as a tuple of at least one; 0.05 for p-values where none is given."""
    check_option("criterion", criterion, CertaintyCriterion)
    if threshold is None:
        if criterion != "p_value":
            raise ValueError(
                f"threshold: expected a number of nats for criterion={criterion!r}, got None: there is no customary one"
            )
        return (0.05,)
    thresholds = tuple(threshold) if isinstance(threshold, Sequence) else (float(threshold),)
    if not thresholds or not all(float("-inf") < value < float("inf") for value in thresholds):
        raise ValueError(f"threshold: expected one or more finite numbers, got {threshold!r}")
    return thresholds
