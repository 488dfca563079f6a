"""Uncertainty of each prediction and its score against the label; Matthews correlation of a set."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.metrics.functional.inputs import (
    InputKind,
    accumulation_dtype,
    check_option,
    draw_probabilities,
    label_mask,
    log_mean_probability_of,
    mean_probabilities,
    require_draws,
    widened,
)


def entropy(probabilities: Tensor) -> Tensor:
    r"""Entropy of categorical distributions ``[..., C]``, which sum to 1 over C, in nats.

    :math:`H(p) = -\sum_c p_c \log p_c` with :math:`0 \log 0 = 0`; rounding errors outside [0, log C] are clipped.

    Returns:
        Entropies ``[...]``, in [0, log C].

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

    with :math:`S_p` the p-th draw from the posterior. It is the sum of the expected entropy and the mutual information
    (Depeweg et al. 2018, Eq. 1).

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]``; float16 and bfloat16 are computed in float32.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which synchronises with the device.

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

    with :math:`p_p` the prediction of draw p and :math:`\bar p` their mean (Houlsby et al. 2011). Computed as the mean
    KL divergence, because the difference of entropies loses all digits if the draws agree. It is 0 for one draw and for
    equal draws. Arguments and errors are those of :func:`predictive_entropy`; ``[N, C]`` raises ``ValueError``.

    Returns:
        ``[N]``, in [0, log min(P, C)]; empty for N = 0.

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

    :math:`1 - \max_c \bar p_c` for the mean over draws, computed as the sum of the other classes' probabilities, which
    still ranks predictions whose confidence rounds to 1. Arguments and errors are those of :func:`predictive_entropy`.

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
"""Names of uncertainty scores; each is the function of that name. Higher means less certain."""


def uncertainty(
    preds: Tensor, kind: UncertaintyKind, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    """Uncertainty of each prediction by the score named ``kind``; higher means less certain.

    The kind is ``"least_confidence"``, ``"predictive_entropy"``, ``"expected_entropy"`` or ``"mutual_information"``;
    the last needs draws ``[P, N, C]``. All but the first are in nats. The other arguments are those of
    :func:`predictive_entropy`.

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
    check_option("uncertainty", kind, UncertaintyKind)
    functions = (least_confidence, predictive_entropy, expected_entropy, mutual_information)
    measure = next(function for function in functions if function.__name__ == kind)
    return measure(preds, inputs=inputs, validate_args=validate_args)


def negative_log_likelihood(
    preds: Tensor, target: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    r"""Negative log-likelihood of each example's label under the mean over draws, in nats.

    .. math:: -\log \frac{1}{P} \sum_p p(y \mid x, S_p)

    At most the mean over draws of :math:`-\log p(y \mid x, S_p)` (Jensen). Logits are handled in log space; a
    probability that is exactly 0 gives ``inf``. ``target`` holds integer labels ``[N]`` in 0 .. C-1; the other
    arguments are those of :func:`predictive_entropy`.

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

    for the mean over draws :math:`\bar p` (Brier 1950). For two classes it is twice the form that uses P(y = 1) only.
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

    with s examples, c of them correct, :math:`p_k` of them predicted to be of class k and :math:`t_k` of them truly of
    class k. As in scikit-learn, R is 0 if all predictions, or all labels, are of one class; torchmetrics' value then
    depends on the number of examples.

    Args:
        predicted: predicted classes ``[N]``, integers >= 0.
        target: true classes ``[N]``, integers >= 0.

    Returns:
        R, 0-d float64 (float32 on devices without it) in [-1, 1]; NaN without any example.

    Raises:
        TypeError: classes are not integers.
        ValueError: shapes differ or are not ``[N]``, or a class is below 0.

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
