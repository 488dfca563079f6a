"""Inputs of the measures: predictions, labels, masks, scores and their precision."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from probattn.host import at_least_float32

InputKind = Literal["probabilities", "logits"]
"""Kind of a prediction; it must be declared, because it is not inferred from the values."""


def draw_probabilities(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    """Class probabilities of every draw, in at least float32.

    Args:
        preds: ``[P, N, C]`` for P draws from a posterior, or ``[N, C]`` for one prediction (P = 1). Any
            floating-point type; float16 and bfloat16 are computed in float32. C is at least 2.
        inputs: ``"probabilities"`` (in [0, 1], summing to 1 over C) or ``"logits"`` (softmax is taken over C).
        validate_args: whether to check the values, which synchronises with the device.

    Returns:
        Probabilities ``[P, N, C]``, float32 or float64.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: the shape is wrong, ``inputs`` is unknown, or the values do not fit ``inputs``.

    Example:
        >>> draw_probabilities(torch.zeros(3, 2), inputs="logits")
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000],
                 [0.5000, 0.5000]]])
    """
    draws = _as_draws(preds)
    check_option("inputs", inputs, InputKind)
    if inputs == "logits":
        probabilities = draws.softmax(dim=-1)
        if validate_args and bool(probabilities.isnan().any()):
            raise ValueError("preds: expected logits, got NaN, +inf, or a row that is -inf everywhere")
        return probabilities
    if validate_args:
        _check_probabilities(draws, preds.dtype)
    return draws


def mean_probabilities(
    preds: Tensor, *, inputs: InputKind = "probabilities", validate_args: bool = True
) -> Tensor:
    """Class probabilities of the posterior predictive distribution: the mean of the draws' probabilities, not logits.

    Arguments and errors are those of :func:`draw_probabilities`.

    Returns:
        Probabilities ``[N, C]``, float32 or float64.

    Example:
        >>> mean_probabilities(torch.tensor([[[0.25, 0.75]], [[0.75, 0.25]]]))
        tensor([[0.5000, 0.5000]])
    """
    return draw_probabilities(preds, inputs=inputs, validate_args=validate_args).mean(dim=0)  # [N, C]


def log_mean_probability_of(preds: Tensor, target: Tensor, *, inputs: InputKind) -> Tensor:
    """Log [N] of the posterior predictive probability of labels [N], from checked arguments."""
    # Logits stay in log space: log mean_p softmax(z_p)_y = logsumexp_p log_softmax(z_p)_y - log P.
    draws = _as_draws(preds)
    index = target.expand(draws.shape[0], -1).unsqueeze(-1)  # [P, N, 1]
    if inputs == "logits":
        log_likelihood = draws.log_softmax(dim=-1).gather(-1, index).squeeze(-1)  # [P, N]
        return log_likelihood.logsumexp(dim=0) - math.log(draws.shape[0])
    return draws.gather(-1, index).squeeze(-1).mean(dim=0).log()


def label_mask(
    target: Tensor, size: int, classes: int, *, ignore_index: int | None = None, validate_args: bool = True
) -> Tensor:
    """Checks labels [N]; bool [N], False where the label is ``ignore_index``."""
    _check_tensor("target", target)
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"target: expected integer class labels, got {target.dtype}: convert with .long()")
    if target.shape != (size,):
        raise ValueError(f"target: expected shape [{size}] (one label an example), got {list(target.shape)}")
    mask = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else target != ignore_index
    if validate_args:
        wrong = mask & ((target < 0) | (target >= classes))
        if bool(wrong.any()):
            raise ValueError(
                f"target: expected labels in 0 .. {classes - 1}, got {target[wrong][0].item()}: "
                "give labels that do not count as ignore_index"
            )
    return mask


def example_mask(mask: Tensor | None, size: int, device: torch.device, *, name: str = "mask") -> Tensor:
    """Checks a bool mask [N], named ``name`` in messages; ``None`` keeps all."""
    if mask is None:
        return torch.ones(size, dtype=torch.bool, device=device)
    if mask.dtype != torch.bool:
        raise TypeError(f"{name}: expected bool, got {mask.dtype}: convert with .bool()")
    if mask.shape != (size,):
        raise ValueError(f"{name}: expected shape [{size}] (one value an example), got {list(mask.shape)}")
    return mask


def require_draws(preds: Tensor, what: str) -> None:
    """Raises unless ``preds`` is [P, N, C]; ``what`` names the measure in the message."""
    if preds.dim() != 3:
        raise ValueError(
            f"{what}: expected draws [P, N, C], got shape {list(preds.shape)}: it measures the spread between "
            "draws; for a single draw write preds[None]"
        )


def prediction_shape(preds: Tensor) -> tuple[int, int]:
    """Numbers of examples and of classes, N and C, of [P, N, C] or [N, C]."""
    _, num_examples, num_classes = _as_draws(preds).shape
    return num_examples, num_classes


def check_scores(scores: Tensor, name: str) -> Tensor:
    """Checks scores [N], named ``name`` in messages; at least float32, without NaN, infinities allowed."""
    _check_tensor(name, scores)
    if scores.dim() != 1:
        raise ValueError(f"{name}: expected scores [N], got shape {list(scores.shape)}")
    if not scores.is_floating_point():
        raise TypeError(f"{name}: expected floating-point scores, got {scores.dtype}: convert with .float()")
    if bool(scores.isnan().any()):
        raise ValueError(f"{name}: expected numbers, got NaN: it has no rank among the others")
    return at_least_float32(scores).contiguous()  # searchsorted warns otherwise


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: expected a tensor, got {type(value).__name__}: give torch.as_tensor({name})"
        )


def check_open_share(name: str, value: float) -> None:
    """Raises unless ``value`` is between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}: expected a number between 0 and 1, got {value}")


def check_option(name: str, value: object, choices: Any) -> None:
    """Raises unless ``value`` is one of the ``Literal`` ``choices``."""
    if value not in get_args(choices):
        raise ValueError(f"{name}: expected one of {get_args(choices)}, got {value!r}")


def _as_draws(preds: Tensor) -> Tensor:
    """[N, C] or [P, N, C] -> [P, N, C] in at least float32."""
    _check_tensor("preds", preds)
    if not preds.is_floating_point():
        raise TypeError(f"preds: expected floating-point probabilities or logits, got {preds.dtype}")
    if preds.dim() not in {2, 3}:
        raise ValueError(
            f"preds: expected [N, C], or [P, N, C] for P draws, got shape {list(preds.shape)}: flatten other "
            "dimensions into N"
        )
    if preds.shape[-1] < 2:
        raise ValueError(
            f"preds: expected at least two classes in the last dimension, got shape {list(preds.shape)}: "
            "give a single sigmoid output p as torch.stack([1 - p, p], dim=-1)"
        )
    draws = preds if preds.dim() == 3 else preds.unsqueeze(0)
    if draws.shape[0] == 0:
        raise ValueError(f"preds: expected at least one draw, got shape {list(preds.shape)}")
    return at_least_float32(draws)


def _check_probabilities(draws: Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-3 if dtype in {torch.float32, torch.float64} else 2e-2  # rounding of 8 to 11 bits
    inside = (draws >= -tolerance) & (draws <= 1 + tolerance)  # False for NaN
    if not bool(inside.all()):
        raise ValueError(
            f"preds: expected probabilities in [0, 1], got {draws[~inside][0].item():g}: "
            'if these are logits, say inputs="logits"'
        )
    off = (draws.sum(dim=-1) - 1).abs()
    if not bool((off <= tolerance).all()):
        raise ValueError(
            f"preds: expected probabilities that sum to 1 over the last dimension, got a sum off by "
            f'{off.max().item():g}: if these are logits, say inputs="logits"'
        )


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The type of sums over many examples: float64, or float32 on devices without it (Apple's MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def widened(values: Tensor) -> Tensor:
    """The values in the type of sums over many examples."""
    return values.to(accumulation_dtype(values.device))
