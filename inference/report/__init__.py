"""The report of a run: what was measured (``metrics.json``) and a page to read (``report.html``).

Predictions become :class:`Scores` and :class:`Difference` records by :func:`evaluate`; the records of a run together
are :class:`Results`, which :func:`write_results` and :func:`read_results` keep to the last digit and
:func:`write_report` shows. :func:`combine` makes those of several runs of one recipe into one comparison over their
seeds. What a comparison may be said to show, :func:`is_reliable` decides.
"""

from probattn.inference.report.agreement_records import (
    Agreement,
    Contextualized,
    PairAgreement,
    Rating,
)
from probattn.inference.report.alignment import (
    HeadDistances,
    TokenSample,
    gather,
    head_bandwidths,
    head_distances,
    site_alignments,
)
from probattn.inference.report.alignment_clouds import Projection, clouds
from probattn.inference.report.alignment_records import Alignment, HeadCloud, SiteAlignment
from probattn.inference.report.charts.svg import printable, printable_lines
from probattn.inference.report.claims import (
    LEAST_EFFECT,
    LEAST_EXAMPLES,
    LEAST_SEEDS,
    bootstrap_p,
    corrected,
    is_reliable,
    seeds_p,
)
from probattn.inference.report.collect import (
    BayesianPredictions,
    DeterministicPredictions,
    predict_bayesian,
    predict_deterministic,
)
from probattn.inference.report.curves import training_curves
from probattn.inference.report.dynamics_records import Dynamics, WatchedExample, WatchedMaps, WatchedStep
from probattn.inference.report.edges import EDGE_MEASURES, EdgeAttention
from probattn.inference.report.evaluation import Evaluation, PredictedData, Predictions, evaluate
from probattn.inference.report.examples import AttentionExample, AttentionMap, Example
from probattn.inference.report.heads import site_heads
from probattn.inference.report.heads_records import HeadDrops, HeadRows, Heads, HeadsKey, SiteHeads
from probattn.inference.report.health import site_health, weight_spreads
from probattn.inference.report.maps import attention_example, own_tokens
from probattn.inference.report.measurements import (
    Comparison,
    Curve,
    Difference,
    Entropy,
    PAvPUPoint,
    ReliabilityBin,
    RiskCoverage,
    Scores,
    SiteHealth,
)
from probattn.inference.report.measures import (
    MODEL_LABELS,
    MODEL_TITLES,
    ROLE_TITLES,
    TEXTS,
    MeasureText,
    Verdict,
)
from probattn.inference.report.page import render_report, write_report
from probattn.inference.report.record import MEASURES, MODELS, ClassMeasure, Measure, ModelKey, Role
from probattn.inference.report.results import SCHEMA_VERSION, DataSet, Results, RunDescription, SingleRun
from probattn.inference.report.seeds import combine
from probattn.inference.report.selection import confident_mistakes, describe, most_uncertain
from probattn.inference.report.storage import ResultsFileError, read_results, write_results
from probattn.inference.report.terminal import Group, Sheet, comparisons, predictions_table, results_table
from probattn.inference.report.wording import Finding, evidence, findings, headline

__all__ = [
    "Group",
    "Sheet",
    "comparisons",
    "predictions_table",
    "results_table",
    "evaluate",
    "Evaluation",
    "PredictedData",
    "Predictions",
    "predict_bayesian",
    "predict_deterministic",
    "BayesianPredictions",
    "DeterministicPredictions",
    "describe",
    "most_uncertain",
    "confident_mistakes",
    "attention_example",
    "own_tokens",
    "gather",
    "head_bandwidths",
    "head_distances",
    "site_alignments",
    "site_heads",
    "clouds",
    "TokenSample",
    "HeadDistances",
    "Projection",
    "weight_spreads",
    "site_health",
    "training_curves",
    "Results",
    "RunDescription",
    "SingleRun",
    "DataSet",
    "Scores",
    "Comparison",
    "Difference",
    "Entropy",
    "ReliabilityBin",
    "RiskCoverage",
    "PAvPUPoint",
    "SiteHealth",
    "EdgeAttention",
    "EDGE_MEASURES",
    "Alignment",
    "SiteAlignment",
    "HeadCloud",
    "Heads",
    "SiteHeads",
    "HeadDrops",
    "HeadRows",
    "HeadsKey",
    "Curve",
    "Agreement",
    "Contextualized",
    "PairAgreement",
    "Rating",
    "Dynamics",
    "WatchedExample",
    "WatchedMaps",
    "WatchedStep",
    "Example",
    "AttentionExample",
    "AttentionMap",
    "Measure",
    "ClassMeasure",
    "ModelKey",
    "Role",
    "MEASURES",
    "MODELS",
    "MODEL_LABELS",
    "MODEL_TITLES",
    "ROLE_TITLES",
    "SCHEMA_VERSION",
    "MeasureText",
    "TEXTS",
    "Finding",
    "findings",
    "headline",
    "evidence",
    "Verdict",
    "LEAST_EFFECT",
    "LEAST_EXAMPLES",
    "LEAST_SEEDS",
    "is_reliable",
    "bootstrap_p",
    "seeds_p",
    "corrected",
    "combine",
    "printable",
    "printable_lines",
    "write_results",
    "read_results",
    "ResultsFileError",
    "write_report",
    "render_report",
]
