"""Measures of uncertainty as torchmetrics classes; :mod:`probattn.metrics.functional` holds the functions.

Every metric takes class predictions ``[N, C]``, or draws ``[P, N, C]`` from a posterior, declared as probabilities
or logits. A value is the same whether the data came at once, in batches, or spread over processes.
"""

from probattn.metrics.calibration import CalibrationError, OverconfidenceError, ReliabilityDiagram
from probattn.metrics.domain import OODAUROC, OODFPR, EntropyCDF
from probattn.metrics.entropies import ExpectedEntropy, MutualInformation, PredictiveEntropy
from probattn.metrics.scores import BrierScore, NegativeLogLikelihood
from probattn.metrics.selective import (
    AreaUnderRiskCoverage,
    ExcessAreaUnderRiskCoverage,
    PAvPU,
    RiskCoverageCurve,
)

__all__ = [
    "AreaUnderRiskCoverage",
    "BrierScore",
    "CalibrationError",
    "EntropyCDF",
    "ExcessAreaUnderRiskCoverage",
    "ExpectedEntropy",
    "MutualInformation",
    "NegativeLogLikelihood",
    "OODAUROC",
    "OODFPR",
    "OverconfidenceError",
    "PAvPU",
    "PredictiveEntropy",
    "ReliabilityDiagram",
    "RiskCoverageCurve",
]
