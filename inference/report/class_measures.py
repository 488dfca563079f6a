"""Measures of the predicted classes that some tasks are customarily judged by."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.functional.classification import binary_f1_score, multiclass_f1_score

from probattn.inference.report.record import ClassMeasure
from probattn.metrics.functional import matthews_correlation


def class_measure(name: ClassMeasure, predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """One measure over some examples.

    Args:
        name: "matthews", the Matthews correlation; or "f1", of the second class where there are two, else the mean
            over classes.
        predicted: classes ``[N]``.
        labels: true classes ``[N]``.
        num_classes: C.

    Returns:
        The value; F1 is 0 where the class neither occurs nor is predicted.

    Example:
        >>> import torch
        >>> class_measure("f1", torch.tensor([1, 1, 0]), torch.tensor([1, 0, 0]), 2)
        0.666...
    """
    if name == "matthews":
        return matthews_correlation(predicted, labels).item()
    if num_classes == 2:
        return binary_f1_score(predicted, labels, validate_args=False).item()
    return multiclass_f1_score(predicted, labels, num_classes, average="macro", validate_args=False).item()
