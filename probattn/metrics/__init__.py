"""Measures of uncertainty as torchmetrics classes; :mod:`probattn.metrics.functional` holds the functions.

Every metric takes class predictions ``[N, C]``, or draws ``[P, N, C]`` from a posterior, declared as probabilities
or logits. A value is the same whether the data came at once, in batches, or spread over processes.
"""

from probattn.metrics.brier_score import BrierScore
from probattn.metrics.calibration_error import CalibrationError
from probattn.metrics.entropy_cdf import EntropyCDF
from probattn.metrics.expected_entropy import ExpectedEntropy
from probattn.metrics.mutual_information import MutualInformation
from probattn.metrics.negative_log_likelihood import NegativeLogLikelihood
from probattn.metrics.ood_auroc import OODAUROC
from probattn.metrics.ood_fpr import OODFPR
from probattn.metrics.overconfidence_error import OverconfidenceError
from probattn.metrics.pavpu import PAvPU
from probattn.metrics.predictive_entropy import PredictiveEntropy
from probattn.metrics.reliability_diagram import ReliabilityDiagram
from probattn.metrics.risk_coverage import (
    AreaUnderRiskCoverage,
    ExcessAreaUnderRiskCoverage,
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
