"""Uncertainty of each prediction: entropies, mutual information, least confidence."""

import math
from typing import Literal

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import (
    InputKind,
    check_known,
    draw_probabilities,
    mean_probabilities,
    require_draws,
)


def entropy(probabilities: Tensor) -> Tensor:
    r"""Entropy of categorical distributions, in nats.

    :math:`H(p) = -\sum_c p_c \log p_c` with :math:`0 \log 0 = 0`, kept within its bounds 0 and log C against rounding.

    Args:
        probabilities: ``[..., C]``, summing to 1 over C.

    Returns:
        ``[...]``, in [0, log C].

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000])
    """
    bound = math.log(probabilities.shape[-1])
    return torch.special.entr(probabilities.clamp(min=0)).sum(dim=-1).clamp(min=0, max=bound)


def predictive_entropy(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Total uncertainty of each prediction: the entropy of the mean over draws, in nats.

    .. math:: H\Big[\frac{1}{P} \sum_p p(y \mid x, S_p)\Big]

    It is the sum of the expected entropy and the mutual information (Depeweg et al. 2018, Eq. 1).

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]``; float16 and bfloat16 are computed in float32.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        ``[N]``, in [0, log C]; empty for N = 0.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: the shape is wrong or the values do not fit ``inputs``.

    Example:
        >>> predictive_entropy(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        tensor([0.6931])
    """
    return entropy(mean_probabilities(preds, inputs=inputs, validate_args=validate_args))


def expected_entropy(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Aleatoric part of each prediction's uncertainty: the mean over draws of the entropy, in nats.

    .. math:: \frac{1}{P} \sum_p H[p(y \mid x, S_p)]

    (Depeweg et al. 2018, Eq. 1.) With one draw it equals the predictive entropy. Arguments and errors are
    those of :func:`predictive_entropy`.

    Returns:
        ``[N]``, in [0, log C]; empty for N = 0.

    Example:
        >>> import torch
        >>> expected_entropy(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        tensor([0.3251])
    """
    return entropy(draw_probabilities(preds, inputs=inputs, validate_args=validate_args)).mean(dim=0)


def mutual_information(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Epistemic part of each prediction's uncertainty: the disagreement of the draws, in nats.

    .. math:: I[y; S \mid x] = H[\bar p] - \frac{1}{P} \sum_p H[p_p]
        = \frac{1}{P} \sum_p \mathrm{KL}(p_p \,\|\, \bar p)

    (Houlsby et al. 2011.) Computed as the last, a mean of non-negative terms, since the difference of entropies
    loses all digits when draws agree. One draw, or draws that are all equal, give 0. Arguments
    are those of :func:`predictive_entropy`, with draws ``[P, N, C]``.

    Returns:
        ``[N]``, in [0, log min(P, C)]; empty for N = 0.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: there is no dimension of draws, or the values do not fit ``inputs``.

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


def least_confidence(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""One minus the confidence: the predicted probability that the prediction is wrong.

    :math:`1 - \max_c \bar p_c` for the mean over draws, summed over the other classes: where the confidence rounds
    to 1, predictions can still be ranked. Arguments and errors are those of :func:`predictive_entropy`.

    Returns:
        ``[N]``, in [0, 1 - 1/C]; empty for N = 0.

    Example:
        >>> import torch
        >>> least_confidence(torch.tensor([[0.7, 0.2, 0.1]]))
        tensor([0.3000])
    """
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)
    predicted = mean.argmax(dim=-1, keepdim=True)
    return mean.scatter(-1, predicted, 0.0).sum(dim=-1)


UncertaintyKind = Literal["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"]
"""Names of the scores; each is the function of that name. Higher means less certain."""


def uncertainty(
    preds: Tensor, kind: UncertaintyKind, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    """Uncertainty of each prediction by the score named ``kind``; higher means less certain.

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]`` (not for ``"mutual_information"``).
        kind: ``"least_confidence"``, ``"predictive_entropy"``, ``"expected_entropy"`` or
            ``"mutual_information"``; the entropies are in nats.
        inputs: as for :func:`predictive_entropy`.
        validate_args: as for :func:`predictive_entropy`.

    Returns:
        ``[N]``, float32 or float64, non-negative.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: ``kind`` is unknown, the shape is wrong or the values do not fit ``inputs``.

    Example:
        >>> import torch
        >>> uncertainty(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), "predictive_entropy")
        tensor([0.6931, 0.0000])
    """
    check_known("uncertainty", kind, UncertaintyKind)
    functions = {
        "least_confidence": least_confidence,
        "predictive_entropy": predictive_entropy,
        "expected_entropy": expected_entropy,
        "mutual_information": mutual_information,
    }
    return functions[kind](preds, inputs=inputs, validate_args=validate_args)
