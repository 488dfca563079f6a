"""Entropy of the posterior predictive distribution."""

import math

import torch
from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, mean_probabilities


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
        ValueError: the shape is wrong or the values are not what ``inputs`` says.

    Example:
        >>> predictive_entropy(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        tensor([0.6931])
    """
    return entropy(mean_probabilities(preds, inputs=inputs, validate_args=validate_args))
