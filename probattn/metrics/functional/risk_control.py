"""Which predictions to answer at a target error rate: exact binomial bounds, and the largest threshold within it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from probattn.metrics.functional.inputs import check_open_share, check_scores


class ControlledThreshold(NamedTuple):
    """A threshold of uncertainty, with counts on the data on which it was chosen.

    Attributes:
        threshold: predictions with at most this uncertainty are answered, the others reviewed by humans; ``inf`` if all
            are answered, ``-inf`` if none is.
        answered: number of answered predictions.
        errors: number of answered predictions that are wrong.
        bound: upper confidence bound of the error rate among answered predictions; 1 if none is answered.
    """

    threshold: float
    answered: int
    errors: int
    bound: float

    @property
    def attained(self) -> bool:
        """Whether any predictions can be answered, ``threshold > -inf``."""
        return self.threshold > -math.inf


def error_bound(errors: int, answered: int, confidence: float = 0.95) -> float:
    r"""Upper confidence bound of an error rate (Clopper & Pearson 1934).

    .. math:: \max \{ r : P(\mathrm{Bin}(n, r) \le k) \ge 1 - \mathrm{confidence} \}

    for k ``errors`` among n ``answered`` predictions and a confidence in (0, 1).

    Returns:
        The bound in [0, 1]; 1 for n = 0.

    Raises:
        ValueError: the counts or the confidence are not as described.

    Example:
        >>> round(error_bound(0, 59), 4), round(error_bound(40, 1000), 4)
        (0.0495, 0.0518)
    """
    check_open_share("confidence", confidence)
    if not 0 <= errors <= answered:
        raise ValueError(
            f"errors: expected a number between 0 and the {answered} answered predictions, got {errors}"
        )
    return (
        1.0 if errors == answered else float(scipy.stats.beta.ppf(confidence, errors + 1, answered - errors))
    )


def controlled_threshold(
    uncertainty: Tensor, wrong: Tensor, *, error: float, confidence: float = 0.95, start: float | None = None
) -> ControlledThreshold:
    r"""The largest threshold of uncertainty at which the error rate among answered inputs meets a target.

    Learn then test (Angelopoulos et al. 2021) with exact binomial tests. At a threshold :math:`\lambda`, with n
    answered predictions of which k are wrong, the hypothesis that the error rate exceeds the target is rejected if

    .. math:: P(\mathrm{Bin}(n, \mathrm{error}) \le k) \le 1 - \mathrm{confidence}

    Thresholds are tested in a fixed sequence, from ``start`` upwards, up to the first hypothesis that is not rejected;
    the last rejected one gives the threshold. With probability ``confidence`` over the data, the error rate of new
    answered inputs of the same distribution is at most ``error``. The number of tests needs no correction: a threshold
    with too high an error rate is returned only if the first such threshold of the sequence is wrongly rejected.

    Args:
        uncertainty: uncertainty of each prediction, ``[N]``; higher means less certain.
        wrong: whether the prediction is wrong, bool ``[N]``.
        error: the target error rate among answered inputs, in (0, 1).
        confidence: probability with which the target is met, in (0, 1).
        start: the first threshold of the sequence, which must not depend on these data; :func:`sequence_start` finds it
            on other data. None starts where the test first rejects if no prediction is wrong. The guarantee then holds
            if the error rate exceeds the target at all thresholds from some value on and at none below; an error among
            these most certain predictions usually means that nothing is answered.

    Returns:
        The threshold, half way to the next larger uncertainty, with its counts and bound.

    Raises:
        TypeError: ``uncertainty`` is not floating-point, or ``wrong`` not bool.
        ValueError: the shapes differ, or a value is not as described.

    Example:
        >>> wrong = torch.arange(1000) % 20 == 19
        >>> wrong[:600] = False
        >>> controlled_threshold(torch.linspace(0, 1, 1000).double(), wrong, error=0.01)
        ControlledThreshold(threshold=0.659..., answered=659, errors=2, bound=0.00952...)
    """
    check_open_share("error", error)
    check_open_share("confidence", confidence)
    values, answered, errors = _counts(uncertainty, wrong)
    minimum = math.log1p(-confidence) / math.log1p(-error)  # so many without an error suffice
    first = int(np.searchsorted(answered, minimum - 1e-9))
    if start is not None:
        first = int(np.searchsorted(values, start, side="right")) - 1
    if first < 0 or first >= len(values):
        return _nothing_answered()
    rejected = scipy.stats.binom.cdf(errors[first:], answered[first:], error) <= 1 - confidence + 1e-12
    stop = len(rejected) if rejected.all() else int(rejected.argmin())
    if stop == 0:
        return _nothing_answered()
    result = _at(first + stop - 1, values, answered, errors, confidence)
    # between the start and the next larger uncertainty where nothing beyond the start was taken
    return result if start is None else result._replace(threshold=max(result.threshold, start))


def sequence_start(uncertainty: Tensor, wrong: Tensor, *, error: float) -> float:
    r"""``start`` of :func:`controlled_threshold`: the threshold whose test has the smallest p-value on other data.

    .. math:: \arg\min_\lambda P(\mathrm{Bin}(n_\lambda, \mathrm{error}) \le k_\lambda)

    Arguments and errors are those of :func:`controlled_threshold`. The predictions must be of other data than those
    passed to it, for instance of validation data.

    Returns:
        The threshold; ``-inf`` without any prediction.

    Example:
        >>> sequence_start(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([False, False, True, True]), error=0.1)
        0.2...
    """
    check_open_share("error", error)
    values, answered, errors = _counts(uncertainty, wrong)
    if not len(values):
        return -math.inf
    return float(values[int(scipy.stats.binom.logcdf(errors, answered, error).argmin())])


def cheapest_threshold(
    uncertainty: Tensor, wrong: Tensor, *, cost: float, confidence: float = 0.95
) -> ControlledThreshold:
    r"""The threshold at which decisions cost the least on these data.

    .. math:: \mathrm{cost}(\lambda) = \frac{\mathrm{cost} \cdot k_\lambda + (N - n_\lambda)}{N}

    with :math:`n_\lambda` of N predictions answered, :math:`k_\lambda` of them wrongly. A wrong answer costs ``cost`` >
    0, a human review 1. Unlike the rule to answer if the predicted probability of an error is below 1 / cost (Chow
    1970), this needs no calibrated predictions; it gives no guarantee. Predictions and errors are those of
    :func:`controlled_threshold`. The bound is invalid here, because the threshold was chosen on the same data.

    Returns:
        The threshold, with counts and bound; of several thresholds with the same cost, the largest.

    Example:
        >>> cheapest_threshold(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([False, False, True]), cost=5.0)
        ControlledThreshold(threshold=0.25..., answered=2, errors=0, bound=0.776...)
    """
    if not (cost > 0 and math.isfinite(cost)):
        raise ValueError(
            f"cost: expected a positive number, a wrong answer against the decision of a person, got {cost}"
        )
    check_open_share("confidence", confidence)
    values, answered, errors = _counts(uncertainty, wrong)
    if not len(values):
        return _nothing_answered()
    costs = cost * errors + (answered[-1] - answered)
    best = len(costs) - 1 - int(costs[::-1].argmin())
    if costs[best] > answered[-1]:
        return _nothing_answered()
    return _at(best, values, answered, errors, confidence)


def _counts(uncertainty: Tensor, wrong: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct uncertainties in rising order, and how many predictions are up to each, and how many of them wrong."""
    scores = check_scores(uncertainty, "uncertainty")
    if wrong.dtype != torch.bool:
        raise TypeError(f"wrong: expected dtype bool, got {str(wrong.dtype).removeprefix('torch.')}")
    if wrong.shape != scores.shape:
        raise ValueError(
            f"wrong: expected the shape of uncertainty, {list(scores.shape)}, got {list(wrong.shape)}"
        )
    order = scores.argsort(stable=True)
    ranked = scores[order].cpu().double().numpy()
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) if len(ranked) else np.empty(0, int)
    return ranked[ends], ends + 1, wrong[order].cpu().numpy().cumsum()[ends]


def _at(
    index: int, values: np.ndarray, answered: np.ndarray, errors: np.ndarray, confidence: float
) -> ControlledThreshold:
    number, mistakes = int(answered[index]), int(errors[index])
    threshold = math.inf if index + 1 == len(values) else float(values[index] + values[index + 1]) / 2
    return ControlledThreshold(threshold, number, mistakes, error_bound(mistakes, number, confidence))


def _nothing_answered() -> ControlledThreshold:
    return ControlledThreshold(-math.inf, 0, 0, 1.0)
