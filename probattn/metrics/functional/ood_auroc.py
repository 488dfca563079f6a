"""How well an uncertainty score tells out-of-domain inputs from in-domain ones."""

import torch
from torch import Tensor

from probattn.metrics.functional.precision import accumulation_dtype, at_least_float32


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
        ValueError: they are not one-dimensional, or one is NaN.

    Example:
        >>> ood_auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.6]))
        tensor(0.9167)
    """
    in_domain, out_of_domain = (
        check_scores(in_domain, "in_domain"),
        check_scores(out_of_domain, "out_of_domain"),
    )
    ranked = in_domain.sort().values
    below = torch.searchsorted(ranked, out_of_domain, right=False)
    not_above = torch.searchsorted(ranked, out_of_domain, right=True)
    twice_wins = (below + not_above).sum().to(accumulation_dtype(in_domain.device))
    # A tensor divisor: 0 / 0 is NaN, where Python would raise.
    pairs = torch.full_like(twice_wins, 2 * in_domain.numel() * out_of_domain.numel())
    return (twice_wins / pairs).float()


def check_scores(scores: Tensor, name: str) -> Tensor:
    """Checks a set of scores.

    Args:
        scores: ``[N]``, floating-point; infinite scores are allowed.
        name: what they are, for messages.

    Returns:
        The scores in at least float32.

    Raises:
        TypeError: they are not floating-point.
        ValueError: they are not one-dimensional, or one is NaN.

    Example:
        >>> check_scores(torch.tensor([0.5], dtype=torch.float16), "in_domain")
        tensor([0.5000])
    """
    if scores.dim() != 1:
        raise ValueError(f"{name}: expected scores [N], got shape {list(scores.shape)}")
    if not scores.is_floating_point():
        raise TypeError(f"{name}: expected floating-point scores, got {scores.dtype}: convert with .float()")
    if bool(scores.isnan().any()):
        raise ValueError(f"{name}: expected numbers, got NaN: it has no rank among the others")
    return at_least_float32(scores).contiguous()  # searchsorted warns otherwise
