"""Measures of uncertainty, of attention heads and of translations as pure functions.

Measures of single examples (an entropy, a p-value, a loss) are returned per example, ``[N]``; measures of a set of
examples (a calibration error, an area) as one number. Predictions are ``[N, C]`` for N examples and C classes, or P
posterior draws ``[P, N, C]``; ``inputs`` declares them as probabilities or logits. Logarithms are natural.
"""

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
    interval_coverage,
    interval_score,
    interval_stretch,
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
from probattn.metrics.functional.examples import (
    UncertaintyKind,
    brier_score,
    entropy,
    expected_entropy,
    least_confidence,
    matthews_correlation,
    mutual_information,
    negative_log_likelihood,
    predictive_entropy,
    uncertainty,
)
from probattn.metrics.functional.heads import HeadDistance, attention_overlap, head_distance, head_similarity
from probattn.metrics.functional.inputs import InputKind, draw_probabilities, mean_probabilities
from probattn.metrics.functional.risk_control import (
    ControlledThreshold,
    cheapest_threshold,
    controlled_threshold,
    error_bound,
    sequence_start,
)
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
from probattn.metrics.functional.texts import (
    BleuScore,
    annotator_accuracy,
    bleu,
    bleu_counts,
    bleu_from_counts,
    find_wordnet,
    meteor,
    name_coverage,
    normal_answer,
    repeated_clauses,
    repeated_ngrams,
    rouge,
)
from probattn.options import ConformalScore

__all__ = ["BinSums", "BleuScore", "CalibrationNorm", "CertaintyCriterion", "ConformalScore"]
__all__ += ["ControlledThreshold", "EntropyCDFCurves", "HeadDistance", "InputKind", "MeanInterval"]
__all__ += ["PositiveDomain", "ReliabilityBins", "RiskCoverage", "UncertaintyKind", "annotator_accuracy"]
__all__ += ["area_under_risk_coverage", "attention_overlap", "best_temperature", "bin_index", "bin_sums"]
__all__ += ["bleu", "bleu_counts", "bleu_from_counts", "brier_score", "calibration_error"]
__all__ += ["calibration_error_from_sums", "certainty_counts", "cheapest_threshold"]
__all__ += ["conformal_quantile", "conformal_scores", "conformal_threshold", "controlled_threshold"]
__all__ += ["draw_probabilities", "entropy", "entropy_cdf", "entropy_counts", "entropy_grid"]
__all__ += ["error_bound", "excess_area_under_risk_coverage", "expected_entropy", "find_wordnet"]
__all__ += ["head_distance", "head_similarity", "holm", "interval_coverage", "interval_score"]
__all__ += ["interval_stretch", "least_confidence", "matthews_correlation", "mean_interval"]
__all__ += ["mean_probabilities", "meteor", "mutual_information", "name_coverage"]
__all__ += ["negative_log_likelihood", "normal_answer", "ood_auroc", "ood_fpr", "overconfidence_error"]
__all__ += ["overconfidence_error_from_sums", "pavpu", "pavpu_from_counts", "prediction_sets"]
__all__ += ["predictive_entropy", "reliability_diagram", "reliability_from_sums", "repeated_clauses"]
__all__ += ["repeated_ngrams", "risk_coverage_curve", "rouge", "sequence_start", "top_two_p_value"]
__all__ += ["uncertainty", "welch_p_value"]
