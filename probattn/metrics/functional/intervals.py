"""Intervals of predicted numbers: how often they hold, how good they are, and how wide they must be."""

import math

from torch import Tensor

from probattn.checks import check_share


def interval_coverage(interval: Tensor, target: Tensor) -> Tensor:
    """Share of the numbers that lie in their interval, ends included.

    Args:
        interval: lower and upper ends, ``[2, N, ...]``, such as ``Posterior.interval(0.95)``.
        target: the numbers, ``[N, ...]``.

    Returns:
        0-d, in [0, 1]; NaN for N = 0.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> import torch
        >>> interval_coverage(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([0.5, 2.0]))
        tensor(0.5000)
    """
    lower, upper, target = _checked(interval, target)
    return ((lower <= target) & (target <= upper)).float().mean()


def interval_score(interval: Tensor, target: Tensor, level: float) -> Tensor:
    r"""Score of each interval (Gneiting and Raftery 2007, Eq. 43): its width, and a fine for a number outside.

    .. math:: (u - l) + \frac{2}{1 - \text{level}} \big[(l - y)_+ + (y - u)_+\big]

    It is proper: in expectation the true quantiles have the smallest score.

    Args:
        interval: lower and upper ends, ``[2, N, ...]``.
        target: the numbers, ``[N, ...]``.
        level: coverage that the intervals are meant to have, in (0, 1).

    Returns:
        ``[N, ...]``, in units of y, >= 0; smaller is better.

    Raises:
        ValueError: shapes that do not fit, or a level out of its range.

    Example:
        >>> import torch
        >>> interval_score(torch.tensor([[0.0], [1.0]]), torch.tensor([1.5]), 0.8)
        tensor([6.])
    """
    check_share("interval_score", "level", level, zero=False, one=False)
    lower, upper, target = _checked(interval, target)
    outside = (lower - target).clamp_min(0) + (target - upper).clamp_min(0)
    return upper - lower + 2 / (1 - level) * outside


def interval_stretch(interval: Tensor, target: Tensor, level: float) -> Tensor:
    r"""The factor by which intervals must be stretched about their middle to cover, learned from held-out data.

    With m the middle and h half the width, the factor is the :math:`\lceil (n + 1)\,\text{level} \rceil`-th smallest
    of :math:`|y_i - m_i| / h_i`: split conformal prediction with a local scale (Lei et al. 2018, section 5.2).
    Intervals of new data from the same population, stretched by it, cover with probability ``level`` at least, and at
    most 1 / (n + 1) more where there are no ties.

    Args:
        interval: lower and upper ends on held-out data, ``[2, N]`` or ``[2, N, 1]``, of positive width.
        target: the numbers, ``[N]`` or ``[N, 1]``.
        level: wanted coverage, in (0, 1).

    Returns:
        0-d, >= 0; infinite where N is too small to promise the level.

    Raises:
        ValueError: shapes that do not fit, no data, an interval without width, or a level out of its range.

    Example:
        >>> import torch
        >>> interval = torch.tensor([[-1.0] * 4, [1.0] * 4])
        >>> interval_stretch(interval, torch.tensor([0.5, -2.0, 1.5, 0.0]), 0.8)
        tensor(2.)
    """
    check_share("interval_stretch", "level", level, zero=False, one=False)
    lower, upper, target = _checked(interval, target)
    half = (upper - lower) / 2
    if not target.numel() or not bool((half > 0).all()):
        raise ValueError(
            f"interval_stretch: expected intervals of positive width of one number or more, got {list(target.shape)}"
        )
    ratio = ((target - (lower + upper) / 2).abs() / half).flatten().sort().values
    place = math.ceil((len(ratio) + 1) * level)
    return ratio[place - 1] if place <= len(ratio) else ratio.new_full((), math.inf)


def _checked(interval: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if interval.dim() < 1 or len(interval) != 2 or interval[0].numel() != target.numel():
        raise ValueError(
            f"expected an interval [2, N, ...] and N numbers, got {list(interval.shape)} and {list(target.shape)}"
        )
    return interval[0], interval[1], target.reshape(interval[0].shape).to(interval.dtype)
