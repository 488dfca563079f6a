"""Split conformal sets of classes, and intervals of predicted numbers: coverage, score and stretch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probattn.checks import check_share
from probattn.metrics.functional.inputs import check_open_share, check_option, check_scores
from probattn.options import ConformalScore


def conformal_quantile(scores: Tensor, *, error: float) -> float:
    r"""Threshold that a new score of the same distribution exceeds with probability ``error`` at most.

    .. math:: q = s_{(\lceil (N + 1)(1 - \mathrm{error}) \rceil)}

    with the scores :math:`s_{(1)} \le s_{(2)} \le \dots` in rising order (Vovk et al. 2005; for distances, as a test of
    novelty, Laxhammar & Falkman 2010). The probability is over the scores and the new one together. Without ties it is
    also a bound on the probability that the new score is at least q.

    Args:
        scores: scores of held-out inputs, ``[N]``.
        error: the probability, in (0, 1).

    Returns:
        q; ``inf`` if there are fewer scores than the guarantee needs, ``1 / error - 1``.

    Raises:
        TypeError: the scores are not floating-point.
        ValueError: a shape or value is not as described.

    Example:
        >>> conformal_quantile(torch.arange(99.0), error=0.05)
        94.0
    """
    check_open_share("error", error)
    values = check_scores(scores, "scores")
    rank = math.ceil((len(values) + 1) * (1 - error) - 1e-9)
    return math.inf if rank > len(values) else float(values.kthvalue(rank).values)


def conformal_scores(probabilities: Tensor, *, score: ConformalScore = "lac") -> Tensor:
    r"""Nonconformity score of each class: the higher, the less the class fits the input.

    .. math:: s_c = 1 - p_c \quad (\text{lac}), \qquad
        s_c = \sum_{c' : p_{c'} > p_c} p_{c'} + p_c \quad (\text{aps, without its random part})

    Args:
        probabilities: p, class probabilities ``[N, C]``.
        score: ``"lac"`` gives small sets on average, ``"aps"`` sets that are larger for inputs that are difficult.

    Returns:
        float64 ``[N, C]``, in [0, 1].

    Raises:
        ValueError: the shape or the score is not as described.

    Example:
        >>> conformal_scores(torch.tensor([[0.5, 0.375, 0.125]]), score="aps")
        tensor([[0.5000, 0.8750, 1.0000]], dtype=torch.float64)
    """
    check_option("score", score, ConformalScore)
    if probabilities.dim() != 2:
        raise ValueError(f"probabilities: expected [N, C], got shape {list(probabilities.shape)}")
    values = probabilities.double()
    if score == "lac":
        return 1 - values
    ranked, order = values.sort(dim=-1, descending=True, stable=True)
    return torch.empty_like(values).scatter_(1, order, ranked.cumsum(dim=-1).clamp(max=1))


def conformal_threshold(
    probabilities: Tensor, target: Tensor, *, error: float, score: ConformalScore = "lac"
) -> float:
    r"""Threshold of scores for prediction sets that contain the true class with probability ``1 - error`` or more.

    The threshold is the :func:`conformal_quantile` q of the scores of the true classes. For a new input of the same
    distribution the set :math:`\{c : s_c \le q\}` contains the true class with this probability, which is over the
    held-out data and the input together.

    Args:
        probabilities: class probabilities of held-out inputs, ``[N, C]``.
        target: their true classes, integers ``[N]``.
        error: maximum probability that a set does not contain the true class, in (0, 1).
        score: ``"lac"`` or ``"aps"``, see :func:`conformal_scores`.

    Returns:
        q; ``inf``, with which sets contain all classes, if there are too few inputs for the guarantee.

    Raises:
        TypeError: ``target`` is not of an integer type.
        ValueError: a shape or value is not as described.

    Example:
        >>> given = torch.tensor([[0.9, 0.1], [0.75, 0.25], [0.25, 0.75]])
        >>> conformal_threshold(given, torch.tensor([0, 0, 0]), error=0.5)
        0.25
    """
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(f"target: expected integers, got dtype {str(target.dtype).removeprefix('torch.')}")
    scores = conformal_scores(probabilities, score=score)
    size, classes = scores.shape
    if target.shape != (size,) or (size and not 0 <= int(target.min()) <= int(target.max()) < classes):
        raise ValueError(
            f"target: expected {size} numbers of classes below {classes}, got shape {list(target.shape)}"
        )
    return conformal_quantile(scores.gather(1, target[:, None].long())[:, 0], error=error)


def prediction_sets(probabilities: Tensor, threshold: float, *, score: ConformalScore = "lac") -> Tensor:
    """Prediction set of each input: the classes whose score is at most the threshold, and the most probable class.

    ``threshold`` is that of :func:`conformal_threshold` with the same ``score``. Probabilities and errors are those of
    :func:`conformal_scores`. Adding the most probable class never lowers the coverage.

    Returns:
        bool ``[N, C]``, True for the classes in the set.

    Example:
        >>> prediction_sets(torch.tensor([[0.5, 0.375, 0.125], [0.9, 0.05, 0.05]]), 0.65)
        tensor([[ True,  True, False],
                [ True, False, False]])
    """
    inside = conformal_scores(probabilities, score=score) <= threshold
    return inside.scatter_(1, probabilities.argmax(dim=-1, keepdim=True), True)


def interval_coverage(interval: Tensor, target: Tensor) -> Tensor:
    """Share of the numbers that lie in their interval, ends included.

    Args:
        interval: lower and upper ends l and u, ``[2, N, ...]``, such as ``Posterior.interval(0.95)``.
        target: the numbers y, ``[N, ...]``.

    Returns:
        0-d, in [0, 1]; NaN for N = 0.

    Raises:
        ValueError: the shapes do not fit.

    Example:
        >>> import torch
        >>> interval_coverage(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([0.5, 2.0]))
        tensor(0.5000)
    """
    lower, upper, target = _checked(interval, target)
    return ((lower <= target) & (target <= upper)).float().mean()


def interval_score(interval: Tensor, target: Tensor, level: float) -> Tensor:
    r"""Score of each interval (Gneiting and Raftery 2007, Eq. 43): its width, and a penalty for a number outside.

    .. math:: (u - l) + \frac{2}{1 - \text{level}} \big[(l - y)_+ + (y - u)_+\big]

    The score is proper: the true quantiles have the smallest expected score. ``level``, in (0, 1), is the nominal
    coverage of the intervals; the other arguments are those of :func:`interval_coverage`.

    Returns:
        Score ``[N, ...]``, in units of y, >= 0; smaller is better.

    Raises:
        ValueError: the shapes do not fit, or the level is out of its range.

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
    r"""Factor by which intervals must be stretched about their middle to reach a coverage, from held-out data.

    With m the middle and h half the width, the factor is the :math:`\lceil (n + 1)\,\text{level} \rceil`-th smallest
    of :math:`|y_i - m_i| / h_i` over n held-out numbers: split conformal prediction with a local scale (Lei et al.
    2018, section 5.2). An interval of a new input from the same population, stretched by the factor, contains its
    number with probability at least ``level``, and at most ``level`` + 1 / (n + 1) if there are no ties.

    Args:
        interval: lower and upper ends on held-out data, ``[2, n]`` or ``[2, n, 1]``, of positive width.
        target: the numbers y, ``[n]`` or ``[n, 1]``.
        level: target coverage, in (0, 1).

    Returns:
        Factor, 0-d, >= 0; infinite if n is too small for the level.

    Raises:
        ValueError: shapes do not fit, there are no data, an interval has no width, or the level is out of range.

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
    rank = math.ceil((len(ratio) + 1) * level)
    return ratio[rank - 1] if rank <= len(ratio) else ratio.new_full((), math.inf)


def _checked(interval: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if interval.dim() < 1 or len(interval) != 2 or interval[0].numel() != target.numel():
        raise ValueError(
            f"expected an interval [2, N, ...] and N numbers, got {list(interval.shape)} and {list(target.shape)}"
        )
    return interval[0], interval[1], target.reshape(interval[0].shape).to(interval.dtype)
