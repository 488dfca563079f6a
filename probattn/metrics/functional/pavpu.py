"""Patch accuracy against patch uncertainty (PAvPU): is the network uncertain where it errs?"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, kept_examples, mean_probabilities, require_draws
from probattn.metrics.functional.mutual_information import mutual_information
from probattn.metrics.functional.precision import accumulation_dtype
from probattn.metrics.functional.predictive_entropy import predictive_entropy
from probattn.metrics.functional.welch import top_two_p_value

CertaintyCriterion = Literal["p_value", "predictive_entropy", "mutual_information"]
"""What is compared with the threshold; below it a prediction counts as certain."""

DEFAULT_P_VALUE = 0.05


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

    (Mukhoti & Gal 2018). A prediction, the winning class of the mean over draws, is certain if the criterion lies
    below the threshold:

    - ``"p_value"`` (default, threshold 0.05): Welch's t-test between the draws of the two classes with the highest
      mean (Fan et al. 2020). Draws that do not vary are certain, with p = 0; so with a single draw every prediction
      is certain and PAvPU is the accuracy. Give a deterministic network draws from its dropout.
    - ``"predictive_entropy"``, ``"mutual_information"``: in nats (Mukhoti & Gal 2018); the threshold must be given.

    Args:
        preds: draws ``[P, N, C]``.
        target: integer labels ``[N]``.
        threshold: a number, or K numbers to be evaluated at once.
        criterion: what is compared with the threshold.
        inputs: ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values, which waits for the device.

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
    """How many predictions are accurate or not, and certain or not, at each threshold.

    Args:
        preds: draws ``[P, N, C]``.
        target: integer labels ``[N]``.
        thresholds: K numbers.
        criterion: what is compared with them, see :func:`pavpu`.
        inputs: ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values.

    Returns:
        int64 ``[K, 2, 2]``: ``counts[k, accurate, certain]``; they add up over batches and processes.

    Raises:
        TypeError: as for :func:`pavpu`.
        ValueError: as for :func:`pavpu`.

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> certainty_counts(draws, torch.tensor([0, 1]), thresholds=[0.05])
        tensor([[[1, 0],
                 [0, 1]]])
    """
    require_draws(preds, "pavpu")
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)  # [N, C]
    kept = kept_examples(target, *mean.shape, ignore_index=ignore_index, validate_args=validate_args)
    measures = {
        "p_value": top_two_p_value,
        "predictive_entropy": predictive_entropy,
        "mutual_information": mutual_information,
    }
    measure = measures[criterion](preds, inputs=inputs, validate_args=False)  # [N]
    limits = torch.tensor(thresholds, dtype=accumulation_dtype(mean.device), device=mean.device)
    certain = measure < limits.unsqueeze(-1)  # [K, N]
    accurate = (mean.argmax(dim=-1) == target).expand_as(certain)
    by_certainty = torch.stack([~certain, certain], dim=-1)  # [K, N, 2]
    rows = [(by_certainty & (chosen & kept).unsqueeze(-1)).sum(dim=1) for chosen in (~accurate, accurate)]
    return torch.stack(rows, dim=1)


def pavpu_from_counts(counts: Tensor) -> Tensor:
    """PAvPU from the counts of :func:`certainty_counts`.

    Args:
        counts: int64 ``[K, 2, 2]``, of one or more batches, added.

    Returns:
        float32 ``[K]``; NaN without any example.

    Example:
        >>> pavpu_from_counts(torch.tensor([[[2, 1], [1, 4]]]))
        tensor([0.7500])
    """
    agree = (counts[:, 0, 0] + counts[:, 1, 1]).to(accumulation_dtype(counts.device))
    return (agree / counts.sum(dim=(1, 2))).float()


def check_thresholds(
    threshold: float | Sequence[float] | None, criterion: CertaintyCriterion
) -> tuple[float, ...]:
    """The thresholds as a tuple, 0.05 for p-values where none is given.

    Args:
        threshold: one number, several, or ``None``.
        criterion: what is compared with them.

    Returns:
        At least one finite number.

    Raises:
        ValueError: the criterion is unknown, no threshold is given for an entropy, or one is not a number.

    Example:
        >>> check_thresholds(None, "p_value")
        (0.05,)
    """
    if criterion not in get_args(CertaintyCriterion):
        raise ValueError(f"criterion: expected one of {get_args(CertaintyCriterion)}, got {criterion!r}")
    if threshold is None:
        if criterion != "p_value":
            raise ValueError(
                f"threshold: expected a number of nats for criterion={criterion!r}, got None: there is no customary one"
            )
        return (DEFAULT_P_VALUE,)
    thresholds = tuple(threshold) if isinstance(threshold, Sequence) else (float(threshold),)
    if not thresholds or not all(float("-inf") < value < float("inf") for value in thresholds):
        raise ValueError(f"threshold: expected one or more finite numbers, got {threshold!r}")
    return thresholds
