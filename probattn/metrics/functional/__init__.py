"""Measures of uncertainty, of attention heads and of translations as pure functions.

A quantity that each example has (an entropy, a p-value, a loss) is returned per example, ``[N]``; one that only a
set of examples has (a calibration error, an area) is returned for the set. Predictions are ``[N, C]``, or draws
``[P, N, C]``, declared as probabilities or logits. Logarithms are natural.
"""

from probattn.metrics.functional.bleu import BleuScore, bleu, bleu_counts, bleu_from_counts
from probattn.metrics.functional.brier_score import brier_score
from probattn.metrics.functional.calibration_error import (
    CalibrationNorm,
    calibration_error,
    calibration_error_from_sums,
)
from probattn.metrics.functional.entropy_cdf import (
    EntropyCDFCurves,
    entropy_cdf,
    entropy_counts,
    entropy_grid,
)
from probattn.metrics.functional.expected_entropy import expected_entropy
from probattn.metrics.functional.heads import (
    HeadDistance,
    attention_overlap,
    head_distance,
    head_similarity,
)
from probattn.metrics.functional.holm import holm
from probattn.metrics.functional.incomplete_beta import regularized_incomplete_beta
from probattn.metrics.functional.inputs import InputKind, draw_probabilities, mean_probabilities
from probattn.metrics.functional.least_confidence import least_confidence
from probattn.metrics.functional.matthews_correlation import matthews_correlation
from probattn.metrics.functional.mean_interval import MeanInterval, mean_interval
from probattn.metrics.functional.mutual_information import mutual_information
from probattn.metrics.functional.negative_log_likelihood import negative_log_likelihood
from probattn.metrics.functional.ood_auroc import ood_auroc
from probattn.metrics.functional.ood_fpr import PositiveDomain, ood_fpr
from probattn.metrics.functional.overconfidence_error import (
    overconfidence_error,
    overconfidence_error_from_sums,
)
from probattn.metrics.functional.pavpu import CertaintyCriterion, certainty_counts, pavpu, pavpu_from_counts
from probattn.metrics.functional.predictive_entropy import entropy, predictive_entropy
from probattn.metrics.functional.reliability_diagram import (
    BinSums,
    ReliabilityBins,
    bin_sums,
    reliability_diagram,
    reliability_from_sums,
)
from probattn.metrics.functional.risk_coverage import (
    RiskCoverage,
    area_under_risk_coverage,
    excess_area_under_risk_coverage,
    risk_coverage_curve,
)
from probattn.metrics.functional.uncertainty import UncertaintyKind, uncertainty
from probattn.metrics.functional.welch import top_two_p_value, welch_p_value

__all__ = [
    "BinSums",
    "BleuScore",
    "CalibrationNorm",
    "CertaintyCriterion",
    "EntropyCDFCurves",
    "HeadDistance",
    "InputKind",
    "MeanInterval",
    "PositiveDomain",
    "ReliabilityBins",
    "RiskCoverage",
    "UncertaintyKind",
    "area_under_risk_coverage",
    "attention_overlap",
    "bin_sums",
    "bleu",
    "bleu_counts",
    "bleu_from_counts",
    "brier_score",
    "calibration_error",
    "calibration_error_from_sums",
    "certainty_counts",
    "draw_probabilities",
    "entropy",
    "entropy_cdf",
    "entropy_counts",
    "entropy_grid",
    "excess_area_under_risk_coverage",
    "expected_entropy",
    "head_distance",
    "head_similarity",
    "holm",
    "least_confidence",
    "matthews_correlation",
    "mean_interval",
    "mean_probabilities",
    "mutual_information",
    "negative_log_likelihood",
    "ood_auroc",
    "ood_fpr",
    "overconfidence_error",
    "overconfidence_error_from_sums",
    "pavpu",
    "pavpu_from_counts",
    "predictive_entropy",
    "regularized_incomplete_beta",
    "reliability_diagram",
    "reliability_from_sums",
    "risk_coverage_curve",
    "top_two_p_value",
    "uncertainty",
    "welch_p_value",
]
