"""Significance: Welch's test, intervals of means, correction for several comparisons."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit
from torch import Tensor

from probattn.metrics.functional.inputs import (
    InputKind,
    accumulation_dtype,
    draw_probabilities,
    require_draws,
)


def welch_p_value(first: Tensor, second: Tensor) -> Tensor:
    r"""Two-sided p-values of Welch's t-test for equal means of two samples of unequal variances.

    .. math:: t = \frac{m_1 - m_2}{\sqrt{v_1/P + v_2/Q}}, \qquad p = I_{\nu / (\nu + t^2)}(\nu / 2, 1/2)

    with means m, variances v and the degrees of freedom :math:`\nu` of Welch (1947). Equals ``scipy.stats.ttest_ind``
    with ``equal_var=False``, except if neither sample varies (a sample of one value does not): p is then 0 even for
    equal means, while SciPy returns NaN or 0.

    Args:
        first: sample ``[P, ...]``, P at least 1.
        second: sample ``[Q, ...]`` of the same remaining shape.

    Returns:
        p-values ``[...]`` in [0, 1], float64 (float32 on devices without it).

    Raises:
        ValueError: a sample is empty or the shapes do not match.

    Example:
        >>> welch_p_value(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0, 8.0]))
        tensor(0.0999, dtype=torch.float64)
    """
    if first.dim() < 1 or second.dim() < 1 or first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"welch_p_value: expected samples [P, ...] and [Q, ...], got {list(first.shape)} and "
            f"{list(second.shape)}"
        )
    if min(first.shape[0], second.shape[0]) < 1:
        raise ValueError(
            f"welch_p_value: expected at least one value in each sample, got {first.shape[0]} and {second.shape[0]}"
        )
    dtype = accumulation_dtype(first.device)
    mean1, error1 = _mean_and_squared_error(first.to(dtype))
    mean2, error2 = _mean_and_squared_error(second.to(dtype))
    total = error1 + error2
    varies = total > 0
    total = torch.where(varies, total, 1.0)
    share1, share2 = error1 / total, error2 / total
    df = 1 / (share1.square() / max(first.shape[0] - 1, 1) + share2.square() / max(second.shape[0] - 1, 1))
    df = torch.where(varies, df, 1.0)
    t = (mean1 - mean2).abs() / total.sqrt()
    p = torch.as_tensor(2 * stdtr(_float64(df), -_float64(t))).to(t)
    return torch.where(varies, p, 0.0)


def top_two_p_value(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    """p-value, for each example, of the test that its two most probable classes are equally probable (Fan et al. 2020).

    Welch's t-test between the draws of the probabilities of the two classes with the highest mean. Draws that do not
    vary, such as a single draw, give 0. Arguments and errors are those of
    :func:`~probattn.metrics.functional.predictive_entropy`; ``preds`` without draws, ``[N, C]``, raise ``ValueError``.

    Returns:
        p-values ``[N]``, float64 (float32 on devices without it).

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> top_two_p_value(draws)
        tensor([0.0101, 0.6838], dtype=torch.float64)
    """
    require_draws(preds, "top_two_p_value")
    draws = draw_probabilities(preds, inputs=inputs, validate_args=validate_args)
    top = draws.mean(dim=0).topk(2, dim=-1).indices.expand(draws.shape[0], -1, -1)  # [P, N, 2]
    first, second = draws.gather(-1, top).unbind(dim=-1)  # [P, N] each
    return welch_p_value(first, second)


def _mean_and_squared_error(sample: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [...] and squared standard error of the mean; exactly 0 for a sample that does not vary."""
    size = sample.shape[0]
    shifted = sample - sample[:1]
    shift = shifted.mean(dim=0)
    variance = (shifted - shift).square().sum(dim=0) / max(size - 1, 1)
    return sample[0] + shift, variance / size


def _float64(values: Tensor) -> NDArray[np.float64]:
    return values.detach().cpu().double().numpy()


class MeanInterval(NamedTuple):
    """A mean over ``seeds`` values with the bounds of its interval, which are None for a single value."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def mean_interval(values: Iterable[float], *, level: float = 0.95) -> MeanInterval:
    r"""Mean and its confidence interval by Student's t.

    .. math:: \bar x \pm t_{n - 1, (1 + level) / 2}\, \frac{s}{\sqrt n}

    with s the standard deviation (Student 1908). To compare two methods that were trained with the same seeds, pass the
    differences for each seed: the interval is then that of the paired t-test.

    Args:
        values: x, one value for each of n >= 1 seeds.
        level: confidence level, in (0, 1).

    Raises:
        ValueError: there is no value, or the level is outside (0, 1).

    Example:
        >>> round(mean_interval([0.5, 1.5]).high, 3)
        7.353
        >>> mean_interval([0.5])
        MeanInterval(mean=0.5, low=None, high=None, seeds=1)
    """
    sample = list(values)
    if not sample or not 0 < level < 1:
        raise ValueError(
            f"mean_interval: expected values and a level in (0, 1), got {len(sample)} values and {level}"
        )
    mean = statistics.fmean(sample)
    if len(sample) < 2:
        return MeanInterval(mean, None, None, 1)
    quantile = float(stdtrit(len(sample) - 1, (1 + level) / 2))
    half = quantile * statistics.stdev(sample) / len(sample) ** 0.5
    return MeanInterval(mean, mean - half, mean + half, len(sample))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    r"""p-values adjusted for several comparisons by Holm's step-down method.

    With the m values in ascending order,

    .. math:: \tilde p_{(i)} = \min\left(1, \max_{j \le i} (m - j + 1)\, p_{(j)}\right)

    (Holm 1979). If the differences whose adjusted value is at most :math:`\alpha` are called significant, the
    probability that any of these calls is wrong is at most :math:`\alpha`, for any dependence of the comparisons.

    Args:
        p_values: m >= 0 values in [0, 1].

    Returns:
        The adjusted values, in the order of ``p_values``.

    Raises:
        ValueError: a value is outside [0, 1].

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
        [0.03, 0.06, 0.06, 0.02]
    """
    outside = [p for p in p_values if not 0 <= p <= 1]
    if outside:
        raise ValueError(f"holm: expected p values in [0, 1], got {outside[0]}")
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = min(1.0, max(largest, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = largest
    return tuple(adjusted)
