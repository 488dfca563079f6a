"""How much probability the winning class leaves to the others."""

from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, mean_probabilities


def least_confidence(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""One minus the confidence: the probability that the prediction is wrong, as the network sees it.

    :math:`1 - \max_c \bar p_c` for the mean over draws, summed over the losing classes: where the confidence rounds
    to 1, predictions can still be ranked.

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]``; float16 and bfloat16 are computed in float32.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        ``[N]``, in [0, 1 - 1/C]; empty for N = 0.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: the shape is wrong or the values are not what ``inputs`` says.

    Example:
        >>> import torch
        >>> least_confidence(torch.tensor([[0.7, 0.2, 0.1]]))
        tensor([0.3000])
    """
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)
    winner = mean.argmax(dim=-1, keepdim=True)
    return mean.scatter(-1, winner, 0.0).sum(dim=-1)
