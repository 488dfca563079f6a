"""Scores of predictions against labels: log-likelihood, Brier score, Matthews correlation."""

import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.metrics.functional.inputs import (
    InputKind,
    accumulation_dtype,
    draw_probabilities,
    label_mask,
    log_mean_probability_of,
    mean_probabilities,
    widened,
)


def negative_log_likelihood(
    preds: Tensor, target: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Negative log-likelihood of each example's label under the mean over draws, in nats.

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
        ValueError: a shape is wrong, a label is outside 0 .. C-1, or the values do not fit ``inputs``.

    Example:
        >>> import torch
        >>> negative_log_likelihood(torch.tensor([[0.25, 0.75]]), torch.tensor([1]))
        tensor([0.2877])
    """
    draws = draw_probabilities(preds, inputs=inputs, validate_args=validate_args)
    label_mask(target, draws.shape[-2], draws.shape[-1], validate_args=validate_args)
    return -log_mean_probability_of(preds, target.long(), inputs=inputs)


def brier_score(
    preds: Tensor, target: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Squared distance of each prediction from its label.

    .. math:: \sum_c (\bar p_c - 1[c = y])^2

    for the mean over draws (Brier 1950): in [0, 2], for two classes twice the form that looks at P(y = 1) alone.
    Arguments and errors are those of :func:`negative_log_likelihood`.

    Returns:
        ``[N]``, in [0, 2]; empty for N = 0.

    Example:
        >>> import torch
        >>> brier_score(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        tensor([0.1250, 1.1250])
    """
    mean = mean_probabilities(preds, inputs=inputs, validate_args=validate_args)  # [N, C]
    label_mask(target, *mean.shape, validate_args=validate_args)
    return (mean - F.one_hot(target.long(), mean.shape[-1])).square().sum(dim=-1)


def matthews_correlation(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Matthews correlation coefficient (Matthews 1975), for any number of classes (Gorodkin 2004).

    .. math::
        R = \frac{c\,s - \sum_k p_k t_k}{\sqrt{(s^2 - \sum_k p_k^2)\,(s^2 - \sum_k t_k^2)}}

    with s examples, c of them correct, and :math:`p_k`, :math:`t_k` of them predicted to be and truly of class k. It
    is 0 where one class is predicted throughout, or is the only true one, as for scikit-learn; torchmetrics gives
    such predictions a value that grows as the data shrink.

    Args:
        predicted: classes ``[N]``, integers >= 0.
        target: classes ``[N]``, integers >= 0.

    Returns:
        0-d float64 (float32 on devices without it) in [-1, 1]; NaN without any example.

    Raises:
        TypeError: classes that are no integers.
        ValueError: shapes that differ or are not ``[N]``, or a class below 0.

    Example:
        >>> matthews_correlation(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 1, 0, 1])).item()
        0.577...
        >>> matthews_correlation(torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1])).item()
        0.0
    """
    _check_classes(predicted, target)
    if not len(target):
        return torch.tensor(float("nan"), dtype=accumulation_dtype(target.device), device=target.device)
    classes = int(torch.stack([predicted.max(), target.max()]).max()) + 1
    size = float(len(target))
    correct = widened((predicted == target).sum())
    guessed = widened(torch.bincount(predicted, minlength=classes))
    true = widened(torch.bincount(target, minlength=classes))
    product = (size**2 - guessed.square().sum()) * (size**2 - true.square().sum())
    covariance = correct * size - (guessed * true).sum()
    return torch.where(product > 0, covariance / product.clamp_min(1).sqrt(), 0.0)


def _check_classes(predicted: Tensor, target: Tensor) -> None:
    for name, classes in (("predicted", predicted), ("target", target)):
        if classes.dtype.is_floating_point or classes.dtype.is_complex or classes.dtype == torch.bool:
            raise TypeError(f"matthews_correlation: expected {name} as integers, got {classes.dtype}")
    if predicted.shape != target.shape or target.dim() != 1:
        raise ValueError(
            f"matthews_correlation: expected predicted and target of one shape [N], got {list(predicted.shape)} and "
            f"{list(target.shape)}"
        )
    if len(target) and int(torch.minimum(predicted, target).min()) < 0:
        raise ValueError("matthews_correlation: expected classes >= 0, got a negative one")
