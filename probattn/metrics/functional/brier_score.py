"""Brier score of the posterior predictive."""

import torch.nn.functional as F
from torch import Tensor

from probattn.metrics.functional.inputs import InputKind, kept_examples, mean_probabilities


def brier_score(
    preds: Tensor, target: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Squared distance of each prediction from its label.

    .. math:: \sum_c (\bar p_c - 1[c = y])^2

    for the mean over draws (Brier 1950): in [0, 2], for two classes twice the form that looks at P(y = 1) alone.

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]``; float16 and bfloat16 are computed in float32.
        target: integer labels ``[N]`` in 0 .. C-1.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        ``[N]``, in [0, 2]; empty for N = 0.

    Raises:
        TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
        ValueError: a shape is wrong, a label is outside 0 .. C-1, or the values are not what ``inputs`` says.

    Example:
        >>> import torch
        >>> brier_score(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        tensor([0.1250, 1.1250])
    """
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)  # [N, C]
    kept_examples(target, *mean.shape, validate_args=validate_args)
    return (mean - F.one_hot(target.long(), mean.shape[-1])).square().sum(dim=-1)
