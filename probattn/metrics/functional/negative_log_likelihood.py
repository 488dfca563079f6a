"""Negative log-likelihood of the posterior predictive."""

from torch import Tensor

from probattn.metrics.functional.inputs import (
    InputKind,
    draw_probabilities,
    kept_examples,
    log_mean_probability_of,
)


def negative_log_likelihood(
    preds: Tensor, target: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Surprise of each example's label under the mean over draws, in nats.

    .. math:: -\log \frac{1}{P} \sum_p p(y \mid x, S_p)

    It is at most the mean over draws of :math:`-\log p(y \mid x, S_p)` (Jensen). Logits are handled in log space; a
    probability that is exactly 0 gives ``inf``, unclipped.

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]``; float16 and bfloat16 are computed in float32.
        target: integer labels ``[N]`` in 0 .. C-1.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        ``[N]``, at least 0 (up to rounding); empty for N = 0.

    Raises:
        TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
        ValueError: a shape is wrong, a label is outside 0 .. C-1, or the values are not what ``inputs`` says.

    Example:
        >>> import torch
        >>> negative_log_likelihood(torch.tensor([[0.25, 0.75]]), torch.tensor([1]))
        tensor([0.2877])
    """
    draws = draw_probabilities(preds, inputs=inputs, validate_args=validate_args)
    kept_examples(target, draws.shape[-2], draws.shape[-1], validate_args=validate_args)
    return -log_mean_probability_of(preds, target.long(), inputs=inputs)
