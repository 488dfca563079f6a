"""Expected entropy of the draws' predictions."""

from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, draw_probabilities
from probattn.metrics.functional.predictive_entropy import entropy


def expected_entropy(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Aleatoric part of each prediction's uncertainty: the mean over draws of the entropy, in nats.

    .. math:: \frac{1}{P} \sum_p H[p(y \mid x, S_p)]

    (Depeweg et al. 2018, Eq. 1.) With one draw it equals the predictive entropy.

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
        >>> import torch
        >>> expected_entropy(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        tensor([0.3251])
    """
    return entropy(draw_probabilities(preds, inputs=inputs, validate_args=validate_args)).mean(dim=0)
