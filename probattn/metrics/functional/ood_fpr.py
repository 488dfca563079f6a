"""False alarms of out-of-domain detection at a given rate of detection."""

from typing import Literal, get_args

import torch
from torch import Tensor

from probattn.metrics.functional.ood_auroc import check_scores
from probattn.metrics.functional.precision import accumulation_dtype

PositiveDomain = Literal["out_of_domain", "in_domain"]
"""Which inputs a detector is to find."""


def ood_fpr(
    in_domain: Tensor,
    out_of_domain: Tensor,
    *,
    tpr: float = 0.95,
    positive: PositiveDomain = "out_of_domain",
) -> Tensor:
    """False positive rate at the score threshold that finds at least ``tpr`` of the positives (FPR95).

    With ``positive="out_of_domain"`` it is the share of in-domain inputs flagged when 95% of the out-of-domain
    inputs are (Hendrycks et al. 2019); with ``"in_domain"`` the share of out-of-domain inputs accepted
    when 95% of the in-domain inputs are (Liang et al. 2018). Inputs at the threshold count as found.

    Args:
        in_domain: scores ``[N]``, higher meaning more out of domain.
        out_of_domain: scores ``[M]``.
        tpr: rate of positives to be found, in (0, 1].
        positive: which domain is the positive one; published figures use either.

    Returns:
        0-d float32 in [0, 1]; NaN if either set is empty.

    Raises:
        TypeError: the scores are not floating-point.
        ValueError: they are not one-dimensional, one is NaN, or an option is out of range.

    Example:
        >>> ood_fpr(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.6]))
        tensor(0.5000)
    """
    check_fpr_options(tpr, positive)
    in_domain, out_of_domain = (
        check_scores(in_domain, "in_domain"),
        check_scores(out_of_domain, "out_of_domain"),
    )
    found, others = (
        (out_of_domain, in_domain) if positive == "out_of_domain" else (-in_domain, -out_of_domain)
    )
    size = found.numel()
    if size == 0 or others.numel() == 0:
        return torch.full((), torch.nan, device=in_domain.device)
    dtype = accumulation_dtype(found.device)
    rates = torch.arange(1, size + 1, device=found.device, dtype=dtype) / size
    threshold = found.sort(descending=True).values[(rates < tpr).sum()]
    return ((others >= threshold).sum().to(dtype) / others.numel()).float()


def check_fpr_options(tpr: float, positive: str) -> None:
    """Raises unless the options of :func:`ood_fpr` are valid.

    Args:
        tpr: rate of positives to be found.
        positive: ``"out_of_domain"`` or ``"in_domain"``.

    Raises:
        ValueError: ``tpr`` is outside (0, 1] or ``positive`` is unknown.

    Example:
        >>> check_fpr_options(0.95, "in_domain")
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr: expected a rate in (0, 1], got {tpr!r}")
    if positive not in get_args(PositiveDomain):
        raise ValueError(f"positive: expected one of {get_args(PositiveDomain)}, got {positive!r}")
