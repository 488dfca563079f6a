"""Correlation of predicted and true classes."""

import torch
from torch import Tensor


def matthews_correlation(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Matthews correlation coefficient (Matthews 1975), for any number of classes (Gorodkin 2004).

    .. math::
        R = \frac{c\,s - \sum_k p_k t_k}{\sqrt{(s^2 - \sum_k p_k^2)\,(s^2 - \sum_k t_k^2)}}

    with s examples, c of them right, and :math:`p_k`, :math:`t_k` of them predicted to be and truly of class k. It is 0
    where one class is predicted throughout, or is the only true one, as for scikit-learn; torchmetrics gives such
    predictions a value that grows as the data shrink.

    Args:
        predicted: classes ``[N]``, integers >= 0.
        target: classes ``[N]``, integers >= 0.

    Returns:
        0-d float64 in [-1, 1]; NaN without any example.

    Raises:
        TypeError: classes that are no integers.
        ValueError: shapes that differ or are not ``[N]``, or a class below 0.

    Example:
        >>> matthews_correlation(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 1, 0, 1])).item()
        0.577...
        >>> matthews_correlation(torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1])).item()
        0.0
    """
    _check(predicted, target)
    if not len(target):
        return torch.tensor(float("nan"), dtype=torch.float64, device=target.device)
    classes = int(torch.stack([predicted.max(), target.max()]).max()) + 1
    size = float(len(target))
    right = (predicted == target).sum().double()
    said = torch.bincount(predicted, minlength=classes).double()
    true = torch.bincount(target, minlength=classes).double()
    product = (size**2 - said.square().sum()) * (size**2 - true.square().sum())
    covariance = right * size - (said * true).sum()
    return torch.where(product > 0, covariance / product.clamp_min(1).sqrt(), 0.0)


def _check(predicted: Tensor, target: Tensor) -> None:
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
