"""Uncertainty scores by name: what ranks predictions in selective prediction and out-of-domain detection."""

from typing import Literal, get_args

from torch import Tensor

from probattn.metrics.functional.expected_entropy import expected_entropy
from probattn.metrics.functional.inputs import InputKind
from probattn.metrics.functional.least_confidence import least_confidence
from probattn.metrics.functional.mutual_information import mutual_information
from probattn.metrics.functional.predictive_entropy import predictive_entropy

UncertaintyKind = Literal["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"]
"""Names of the scores; each is the function of that name. Higher means less certain."""


def uncertainty(
    preds: Tensor,
    kind: UncertaintyKind,
    *,
    inputs: InputKind = "probabilities",
    validate_args: bool = True,
) -> Tensor:
    """Uncertainty of each prediction by the score named ``kind``; higher means less certain.

    Args:
        preds: ``[P, N, C]`` for P draws, or ``[N, C]`` (not for ``"mutual_information"``).
        kind: ``"least_confidence"``, ``"predictive_entropy"``, ``"expected_entropy"`` or
            ``"mutual_information"``; the entropies are in nats.
        inputs: ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values, which waits for the device.

    Returns:
        ``[N]``, float32 or float64, non-negative.

    Raises:
        TypeError: ``preds`` is not floating-point.
        ValueError: ``kind`` is unknown, the shape is wrong or the values are not what ``inputs`` says.

    Example:
        >>> import torch
        >>> uncertainty(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), "predictive_entropy")
        tensor([0.6931, 0.0000])
    """
    check_uncertainty_kind(kind)
    functions = {
        "least_confidence": least_confidence,
        "predictive_entropy": predictive_entropy,
        "expected_entropy": expected_entropy,
        "mutual_information": mutual_information,
    }
    return functions[kind](preds, inputs=inputs, validate_args=validate_args)


def check_uncertainty_kind(kind: str) -> None:
    """Raises unless ``kind`` names a score.

    Args:
        kind: name of an uncertainty score.

    Raises:
        ValueError: it is none of :data:`UncertaintyKind`.

    Example:
        >>> check_uncertainty_kind("mutual_information")
    """
    if kind not in get_args(UncertaintyKind):
        raise ValueError(f"uncertainty: expected one of {get_args(UncertaintyKind)}, got {kind!r}")
