"""The distribution of predictive entropies in and out of domain."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.metrics.functional.ood_auroc import check_scores
from probattn.metrics.functional.precision import accumulation_dtype


class EntropyCDFCurves(NamedTuple):
    """Empirical distribution functions of the entropy; the lower the curve, the rarer confident predictions.

    Attributes:
        entropy: float32 grid ``[G]``, in nats.
        in_domain: share ``[G]`` of in-domain inputs with at most that entropy; NaN without any.
        out_of_domain: share ``[G]`` of out-of-domain inputs; NaN without any.
    """

    entropy: Tensor
    in_domain: Tensor
    out_of_domain: Tensor


def entropy_cdf(entropies: Tensor, grid: Tensor) -> Tensor:
    r"""Empirical distribution function of entropies on a grid (Louizos & Welling 2017; An et al. 2020, section C.5).

    .. math:: F(g) = \frac{1}{N} \sum_n 1[H_n \le g]

    Args:
        entropies: ``[N]``, in nats.
        grid: ``[G]``, rising; see :func:`entropy_grid`.

    Returns:
        float32 ``[G]``, rising from 0 to 1; NaN for N = 0.

    Raises:
        TypeError: the entropies are not floating-point.
        ValueError: they are not one-dimensional, or one is NaN.

    Example:
        >>> entropy_cdf(torch.tensor([0.0, 0.5, 0.6931]), torch.tensor([0.0, 0.25, 0.5, 0.7]))
        tensor([0.3333, 0.3333, 0.6667, 1.0000])
    """
    counts = entropy_counts(entropies, grid).to(accumulation_dtype(entropies.device))
    return (counts / torch.full_like(counts, entropies.numel())).float()


def entropy_counts(entropies: Tensor, grid: Tensor) -> Tensor:
    """How many entropies are at most each point of the grid; the counts add up over batches and processes.

    Args:
        entropies: ``[N]``, in nats.
        grid: ``[G]``, rising.

    Returns:
        int64 ``[G]``.

    Raises:
        TypeError: the entropies are not floating-point.
        ValueError: they are not one-dimensional, or one is NaN.

    Example:
        >>> entropy_counts(torch.tensor([0.0, 0.5]), torch.tensor([0.0, 0.25, 0.5]))
        tensor([1, 1, 2])
    """
    entropies = check_scores(entropies, "entropies")
    return torch.searchsorted(entropies.sort().values, grid.to(entropies.dtype), right=True)


def entropy_grid(num_classes: int, n_points: int = 101) -> Tensor:
    """Equally spaced entropies from 0 to log C, the entropy of a uniform prediction.

    Args:
        num_classes: C, at least 2.
        n_points: G, at least 2.

    Returns:
        float32 ``[G]``, in nats.

    Raises:
        ValueError: an argument is below 2.

    Example:
        >>> entropy_grid(2, 3)
        tensor([0.0000, 0.3466, 0.6931])
    """
    if num_classes < 2 or n_points < 2:
        raise ValueError(
            f"entropy_grid: expected at least 2 classes and 2 points, got {num_classes} and {n_points}"
        )
    return torch.linspace(0, math.log(num_classes), n_points, dtype=torch.float32)
