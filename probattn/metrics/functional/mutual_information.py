"""Mutual information between the label and the draw."""

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, draw_probabilities, require_draws


def mutual_information(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Epistemic part of each prediction's uncertainty: what the draws disagree about, in nats.

    .. math:: I[y; S \mid x] = H[\bar p] - \frac{1}{P} \sum_p H[p_p]
        = \frac{1}{P} \sum_p \mathrm{KL}(p_p \,\|\, \bar p)

    (Houlsby et al. 2011.) Computed as the last, a mean of non-negative terms, since the difference of entropies
    loses all digits when draws agree. One draw, or draws that are all alike, give 0.

    Args:
        preds: draws ``[P, N, C]``; float16 and bfloat16 are computed in float32.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        ``[N]``, in [0, log min(P, C)]; empty for N = 0.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: there is no dimension of draws, or the values are not what ``inputs`` says.

    Example:
        >>> mutual_information(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        tensor([0.3681])
    """
    require_draws(preds, "mutual_information")
    draws = draw_probabilities(preds, inputs=inputs, validate_args=validate_args).clamp(min=0)
    mean = draws.mean(dim=0, keepdim=True)  # [1, N, C]
    excess = draws - mean
    divisor = mean.clamp(min=torch.finfo(draws.dtype).tiny)
    # log1p keeps the digits of draws near the mean, the logarithm those of draws near 0.
    near = torch.special.xlog1py(draws, excess / divisor)
    far = torch.special.xlogy(draws, draws / divisor)
    # p log(p/m) - (p - m) is non-negative term by term, and the subtracted part sums to 0 over draws.
    terms = torch.where(excess.abs() < mean / 2, near, far) - excess
    return terms.clamp(min=0).sum(dim=-1).mean(dim=0)
