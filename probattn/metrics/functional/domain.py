"""Out-of-distribution detection by an uncertainty score, and entropies in and out of domain."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import accumulation_dtype, check_option, check_scores


def ood_auroc(in_domain: Tensor, out_of_domain: Tensor) -> Tensor:
    r"""Area under the ROC curve of detecting out-of-domain inputs by a score.

    .. math:: P(s_\mathrm{out} > s_\mathrm{in}) + \tfrac{1}{2} P(s_\mathrm{out} = s_\mathrm{in})

    The Mann-Whitney statistic, counted in integers; it does not change when the score is transformed monotonically.

    Args:
        in_domain: scores ``[N]`` of in-domain inputs, higher meaning more out of domain, such as the
            :func:`~probattn.metrics.functional.predictive_entropy`.
        out_of_domain: scores ``[M]`` of out-of-domain inputs.

    Returns:
        0-d float32 in [0, 1], 0.5 for chance; NaN if either set is empty.

    Raises:
        TypeError: the scores are not floating-point.
        ValueError: the scores are not one-dimensional, or one is NaN.

    Example:
        >>> ood_auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.6]))
        tensor(0.9167)
    """
    in_domain = check_scores(in_domain, "in_domain")
    out_of_domain = check_scores(out_of_domain, "out_of_domain")
    ranked = in_domain.sort().values
    below = torch.searchsorted(ranked, out_of_domain, right=False)
    not_above = torch.searchsorted(ranked, out_of_domain, right=True)
    twice_wins = (below + not_above).sum().to(accumulation_dtype(in_domain.device))
    # A tensor divisor: 0 / 0 is NaN, where Python would raise.
    pairs = torch.full_like(twice_wins, 2 * in_domain.numel() * out_of_domain.numel())
    return (twice_wins / pairs).float()


PositiveDomain = Literal["out_of_domain", "in_domain"]
"""Which inputs are the positives of the detector in :func:`ood_fpr`."""


def ood_fpr(
    in_domain: Tensor, out_of_domain: Tensor, *, tpr: float = 0.95, positive: PositiveDomain = "out_of_domain"
) -> Tensor:
    """False positive rate at the score threshold that detects at least ``tpr`` of the positives (FPR95).

    With ``positive="out_of_domain"`` it is the share of in-domain inputs that are flagged if 95% of the out-of-domain
    inputs are flagged (Hendrycks et al. 2019); with ``"in_domain"`` the share of out-of-domain inputs that are accepted
    if 95% of the in-domain inputs are accepted (Liang et al. 2018). Published figures use either. Inputs at the
    threshold count as detected. ``tpr`` is in (0, 1]; scores and errors are those of :func:`ood_auroc`.

    Returns:
        0-d float32 in [0, 1]; NaN if either set is empty.

    Example:
        >>> ood_fpr(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.6]))
        tensor(0.5000)
    """
    check_fpr_options(tpr, positive)
    in_domain = check_scores(in_domain, "in_domain")
    out_of_domain = check_scores(out_of_domain, "out_of_domain")
    positives, negatives = (
        (out_of_domain, in_domain) if positive == "out_of_domain" else (-in_domain, -out_of_domain)
    )
    size = positives.numel()
    if size == 0 or negatives.numel() == 0:
        return torch.full((), torch.nan, device=in_domain.device)
    dtype = accumulation_dtype(positives.device)
    rates = torch.arange(1, size + 1, device=positives.device, dtype=dtype) / size
    threshold = positives.sort(descending=True).values[(rates < tpr).sum()]
    return ((negatives >= threshold).sum().to(dtype) / negatives.numel()).float()


def check_fpr_options(tpr: float, positive: str) -> None:
    """Raises unless ``tpr`` is in (0, 1] and ``positive`` names a domain."""
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr: expected a rate in (0, 1], got {tpr!r}")
    check_option("positive", positive, PositiveDomain)


class EntropyCDFCurves(NamedTuple):
    """Empirical distribution functions of the entropy; a lower curve means fewer confident predictions.

    Attributes:
        entropy: float32 grid ``[G]``, in nats.
        in_domain: share ``[G]`` of in-domain inputs with at most this entropy; NaN without in-domain inputs.
        out_of_domain: share ``[G]`` of out-of-domain inputs with at most this entropy; NaN without such inputs.
    """

    entropy: Tensor
    in_domain: Tensor
    out_of_domain: Tensor


def entropy_cdf(entropies: Tensor, grid: Tensor) -> Tensor:
    r"""Empirical distribution function of entropies on a grid (Louizos & Welling 2017; An et al. 2020, section C.5).

    .. math:: F(g) = \frac{1}{N} \sum_n 1[H_n \le g]

    Args:
        entropies: H, entropies ``[N]``, in nats.
        grid: g, points ``[G]``, ascending; see :func:`entropy_grid`.

    Returns:
        F, float32 ``[G]``, non-decreasing in [0, 1]; NaN for N = 0.

    Raises:
        TypeError: the entropies are not floating-point.
        ValueError: the entropies are not one-dimensional, or one is NaN.

    Example:
        >>> entropy_cdf(torch.tensor([0.0, 0.5, 0.6931]), torch.tensor([0.0, 0.25, 0.5, 0.7]))
        tensor([0.3333, 0.3333, 0.6667, 1.0000])
    """
    counts = entropy_counts(entropies, grid).to(accumulation_dtype(entropies.device))
    return (counts / torch.full_like(counts, entropies.numel())).float()


def entropy_counts(entropies: Tensor, grid: Tensor) -> Tensor:
    """Number of entropies up to each point of the grid; the counts add up over batches and processes.

    Arguments and errors are those of :func:`entropy_cdf`.

    Returns:
        int64 ``[G]``.

    Example:
        >>> entropy_counts(torch.tensor([0.0, 0.5]), torch.tensor([0.0, 0.25, 0.5]))
        tensor([1, 1, 2])
    """
    entropies = check_scores(entropies, "entropies")
    return torch.searchsorted(entropies.sort().values, grid.to(entropies), right=True)


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
