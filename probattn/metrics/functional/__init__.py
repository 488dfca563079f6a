"""Measures of uncertainty, of attention heads and of translations as pure functions.

A quantity that each example has (an entropy, a p-value, a loss) is returned per example, ``[N]``; one that only a
set of examples has (a calibration error, an area) is returned for the set. Predictions are ``[N, C]``, or draws
``[P, N, C]``, declared as probabilities or logits. Logarithms are natural.
"""

from probattn.metrics.functional.bleu import BleuScore, bleu, bleu_counts, bleu_from_counts
from probattn.metrics.functional.calibration import (
    BinSums,
    CalibrationNorm,
    ReliabilityBins,
    best_temperature,
    bin_index,
    bin_sums,
    calibration_error,
    calibration_error_from_sums,
    overconfidence_error,
    overconfidence_error_from_sums,
    reliability_diagram,
    reliability_from_sums,
)
from probattn.metrics.functional.conformal import (
    conformal_quantile,
    conformal_scores,
    conformal_threshold,
    prediction_sets,
)
from probattn.metrics.functional.domain import (
    EntropyCDFCurves,
    PositiveDomain,
    entropy_cdf,
    entropy_counts,
    entropy_grid,
    ood_auroc,
    ood_fpr,
)
from probattn.metrics.functional.entropies import (
    UncertaintyKind,
    entropy,
    expected_entropy,
    least_confidence,
    mutual_information,
    predictive_entropy,
    uncertainty,
)
from probattn.metrics.functional.heads import (
    HeadDistance,
    attention_overlap,
    head_distance,
    head_similarity,
)
from probattn.metrics.functional.inputs import InputKind, draw_probabilities, mean_probabilities
from probattn.metrics.functional.intervals import interval_coverage, interval_score, interval_stretch
from probattn.metrics.functional.meteor import find_wordnet, meteor
from probattn.metrics.functional.repetition import name_coverage, repeated_clauses, repeated_ngrams
from probattn.metrics.functional.risk_control import (
    ControlledThreshold,
    cheapest_threshold,
    controlled_threshold,
    error_bound,
    sequence_start,
)
from probattn.metrics.functional.rouge import rouge
from probattn.metrics.functional.scores import brier_score, matthews_correlation, negative_log_likelihood
from probattn.metrics.functional.selective import (
    CertaintyCriterion,
    RiskCoverage,
    area_under_risk_coverage,
    certainty_counts,
    excess_area_under_risk_coverage,
    pavpu,
    pavpu_from_counts,
    risk_coverage_curve,
)
from probattn.metrics.functional.significance import (
    MeanInterval,
    holm,
    mean_interval,
    top_two_p_value,
    welch_p_value,
)
from probattn.metrics.functional.visual_questions import annotator_accuracy, normal_answer
from probattn.options import ConformalScore

__all__ = [
    "BinSums",
    "BleuScore",
    "CalibrationNorm",
    "CertaintyCriterion",
    "ConformalScore",
    "ControlledThreshold",
    "EntropyCDFCurves",
    "HeadDistance",
    "InputKind",
    "MeanInterval",
    "PositiveDomain",
    "ReliabilityBins",
    "RiskCoverage",
    "UncertaintyKind",
    "annotator_accuracy",
    "area_under_risk_coverage",
    "attention_overlap",
    "best_temperature",
    "bin_index",
    "bin_sums",
    "bleu",
    "bleu_counts",
    "bleu_from_counts",
    "brier_score",
    "calibration_error",
    "calibration_error_from_sums",
    "certainty_counts",
    "cheapest_threshold",
    "conformal_quantile",
    "conformal_scores",
    "conformal_threshold",
    "controlled_threshold",
    "draw_probabilities",
    "entropy",
    "entropy_cdf",
    "entropy_counts",
    "entropy_grid",
    "error_bound",
    "excess_area_under_risk_coverage",
    "expected_entropy",
    "find_wordnet",
    "head_distance",
    "head_similarity",
    "holm",
    "interval_coverage",
    "interval_score",
    "interval_stretch",
    "least_confidence",
    "matthews_correlation",
    "mean_interval",
    "mean_probabilities",
    "meteor",
    "mutual_information",
    "name_coverage",
    "negative_log_likelihood",
    "normal_answer",
    "ood_auroc",
    "ood_fpr",
    "overconfidence_error",
    "overconfidence_error_from_sums",
    "pavpu",
    "pavpu_from_counts",
    "prediction_sets",
    "predictive_entropy",
    "reliability_diagram",
    "reliability_from_sums",
    "repeated_clauses",
    "repeated_ngrams",
    "risk_coverage_curve",
    "rouge",
    "sequence_start",
    "top_two_p_value",
    "uncertainty",
    "welch_p_value",
]
