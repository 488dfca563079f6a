"""Sets of classes that hold the true one with a promised probability, and limits of what is usual (split conformal)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import check_known, check_scores
from probattn.options import ConformalScore


def conformal_quantile(scores: Tensor, *, error: float) -> float:
    r"""The score that a new one of the same distribution exceeds with a promised probability at most.

    .. math:: q = s_{(\lceil (N + 1)(1 - \mathrm{error}) \rceil)}

    of the scores in rising order (Vovk et al. 2005; of distances, as a test of novelty, Laxhammar & Falkman 2010). The
    probability is over the scores and the new one together; where no two are equal, it is that of reaching q too.

    Args:
        scores: of held-out inputs, ``[N]``.
        error: the probability, in (0, 1).

    Returns:
        q; ``inf`` where there are too few scores for the promise, fewer than ``1 / error - 1``.

    Raises:
        TypeError: the scores are not floating-point.
        ValueError: a shape or value is not as described.

    Example:
        >>> conformal_quantile(torch.arange(99.0), error=0.05)
        94.0
    """
    if not 0 < error < 1:
        raise ValueError(f"error: expected a number between 0 and 1, got {error}")
    values = check_scores(scores, "scores")
    rank = math.ceil((len(values) + 1) * (1 - error) - 1e-9)
    return math.inf if rank > len(values) else float(values.kthvalue(rank).values)


def conformal_scores(probabilities: Tensor, *, score: ConformalScore = "lac") -> Tensor:
    r"""How little each class fits an input.

    .. math:: s_c = 1 - p_c \quad (\text{lac}), \qquad
        s_c = \sum_{c' : p_{c'} > p_c} p_{c'} + p_c \quad (\text{aps, without its random part})

    Args:
        probabilities: ``[N, C]``.
        score: ``"lac"`` gives the smallest sets on average, ``"aps"`` sets whose size follows the difficulty of the
            input.

    Returns:
        float64 ``[N, C]``, in [0, 1].

    Raises:
        ValueError: the shape or the score is not as described.

    Example:
        >>> conformal_scores(torch.tensor([[0.5, 0.375, 0.125]]), score="aps")
        tensor([[0.5000, 0.8750, 1.0000]], dtype=torch.float64)
    """
    check_known("score", score, ConformalScore)
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
    r"""The score up to which classes are in a set, so that it holds the true class with a promised probability.

    The :func:`conformal_quantile` q of the scores of the true classes. For a new input of the same distribution the set
    :math:`\{c : s_c \le q\}` holds the true class with a probability of at least ``1 - error``, over these data and the
    input together.

    Args:
        probabilities: of held-out inputs, ``[N, C]``.
        target: their classes, integers ``[N]``.
        error: the probability with which a set may miss, in (0, 1).
        score: see :func:`conformal_scores`.

    Returns:
        q; ``inf``, with which sets hold all classes, where there are too few inputs for the promise.

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
    """Which classes are in the set of each input; see :func:`conformal_threshold`.

    Args:
        probabilities: ``[N, C]``.
        threshold: q.
        score: the one with which the threshold was found.

    Returns:
        bool ``[N, C]``; the most probable class is in every set, which can only make it hold the true one more often.

    Raises:
        ValueError: the shape or the score is not as described.

    Example:
        >>> prediction_sets(torch.tensor([[0.5, 0.375, 0.125], [0.9, 0.05, 0.05]]), 0.65)
        tensor([[ True,  True, False],
                [ True, False, False]])
    """
    inside = conformal_scores(probabilities, score=score) <= threshold
    return inside.scatter_(1, probabilities.argmax(dim=-1, keepdim=True), True)
