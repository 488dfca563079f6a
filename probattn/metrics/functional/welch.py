"""Welch's t-test, on the device and in batches."""

import torch
from torch import Tensor

from probattn.metrics.functional.incomplete_beta import regularized_incomplete_beta
from probattn.metrics.functional.inputs import InputKind, draw_probabilities, require_draws
from probattn.metrics.functional.precision import accumulation_dtype


def welch_p_value(first: Tensor, second: Tensor) -> Tensor:
    r"""Two-sided p-values of Welch's t-test for equal means of two samples of unequal variances.

    .. math:: t = \frac{m_1 - m_2}{\sqrt{v_1/P + v_2/Q}}, \qquad p = I_{\nu / (\nu + t^2)}(\nu / 2, 1/2)

    with the degrees of freedom :math:`\nu` of Welch (1947). Equals ``scipy.stats.ttest_ind`` with
    ``equal_var=False``, except where both samples do not vary: scipy answers NaN or 0, here p is 0 (certain), be the
    means equal or not. One draw does not vary.

    Args:
        first: sample ``[P, ...]``, P at least 1.
        second: sample ``[Q, ...]`` of the same remaining shape.

    Returns:
        p-values ``[...]`` in [0, 1], float64 (float32 on devices without it).

    Raises:
        ValueError: a sample is empty or the shapes do not match.

    Example:
        >>> welch_p_value(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0, 8.0]))
        tensor(0.0999, dtype=torch.float64)
    """
    if first.dim() < 1 or second.dim() < 1 or first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"welch_p_value: expected samples [P, ...] and [Q, ...], got {list(first.shape)} and "
            f"{list(second.shape)}"
        )
    if min(first.shape[0], second.shape[0]) < 1:
        raise ValueError(
            f"welch_p_value: expected at least one value in each sample, got {first.shape[0]} and {second.shape[0]}"
        )
    dtype = accumulation_dtype(first.device)
    mean1, error1 = _mean_and_squared_error(first.to(dtype))
    mean2, error2 = _mean_and_squared_error(second.to(dtype))
    total = error1 + error2
    varies = total > 0
    total = torch.where(varies, total, 1.0)
    share1, share2 = error1 / total, error2 / total
    df = 1 / (share1.square() / max(first.shape[0] - 1, 1) + share2.square() / max(second.shape[0] - 1, 1))
    df = torch.where(varies, df, 1.0)
    t_squared = (mean1 - mean2).square() / total
    p = regularized_incomplete_beta(
        df / 2, torch.full_like(df, 0.5), 1 / (1 + t_squared / df), 1 / (1 + df / t_squared)
    )
    return torch.where(varies, p, 0.0)


def top_two_p_value(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    """p-value of each example that its two likeliest classes are equally likely (Fan et al. 2020).

    Welch's test between the draws of the probabilities of the two classes with the highest mean. Draws that do
    not vary, one draw among them, give 0.

    Args:
        preds: draws ``[P, N, C]``.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        p-values ``[N]``, float64 (float32 on devices without it).

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: there is no dimension of draws, or the values are not what ``inputs`` says.

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> top_two_p_value(draws)
        tensor([0.0101, 0.6838], dtype=torch.float64)
    """
    require_draws(preds, "top_two_p_value")
    draws = draw_probabilities(preds, inputs=inputs, validate_args=validate_args)
    top = draws.mean(dim=0).topk(2, dim=-1).indices.expand(draws.shape[0], -1, -1)  # [P, N, 2]
    first, second = draws.gather(-1, top).unbind(dim=-1)  # [P, N] each
    return welch_p_value(first, second)


def _mean_and_squared_error(sample: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [...] and squared standard error of the mean; exactly 0 for a sample that does not vary."""
    size = sample.shape[0]
    shifted = sample - sample[:1]
    shift = shifted.mean(dim=0)
    variance = (shifted - shift).square().sum(dim=0) / max(size - 1, 1)
    return sample[0] + shift, variance / size
