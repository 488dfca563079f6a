"""Measures that several of these tasks have: their texts, and sums over bins of confidence."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from probattn.metrics.functional.calibration import BinSums, bin_index, calibration_error_from_sums
from probattn.report.columns import reliability_bins
from probattn.report.measures import CLASS_MEASURES, number, share

__all__ = ["ACCURACY", "AURC", "ECE", "bin_columns", "binned_reliability", "calibration_error"]
__all__ += ["number", "share"]

ACCURACY, ECE = CLASS_MEASURES["accuracy"], CLASS_MEASURES["ece"]
AURC = CLASS_MEASURES["aurc"]


def bin_columns(confidence: Tensor, correct: Tensor, owner: Tensor, size: int, bins: int) -> Tensor:
    """Sums over M bins of confidence ``[K]`` by example, float64 ``[N, M, 3]``: number, right ones, confidence."""
    index = bin_index(confidence, bins)
    values = torch.stack([torch.ones_like(confidence), correct.to(confidence), confidence], dim=-1).double()
    sums = values.new_zeros(size * bins, 3)
    sums.index_add_(0, owner * bins + index, values)
    return sums.view(size, bins, 3)


def binned_sums(columns: Tensor) -> BinSums:
    """The sums over examples of what :func:`bin_columns` gives."""
    counts, correct, confidence = columns.sum(dim=0).unbind(dim=-1)
    return BinSums(counts.long(), correct.long(), confidence)


def calibration_error(columns: Tensor) -> float:
    """Expected calibration error of what :func:`bin_columns` gives."""
    return calibration_error_from_sums(binned_sums(columns), "l1").item()


def binned_reliability(columns: Mapping[str, Tensor]) -> dict[str, Any]:
    """Reliability bins of a column "bins" of :func:`bin_columns`, as a field of :class:`probattn.report.Scores`."""
    return {"reliability": reliability_bins(binned_sums(columns["bins"]))} if "bins" in columns else {}
