"""The report of a run: measurements (``metrics.json``) and an HTML page (``report.html``).

:func:`evaluate` turns predictions into records, :class:`Scores` and :class:`Difference`. :class:`Results` holds all
records of a run; :func:`write_results` writes them without loss, :func:`read_results` reads them, and
:func:`render_report` makes the page. :func:`combine` turns the results of several runs of one recipe into a comparison
over their seeds. :func:`is_reliable` decides which differences are significant.

In records, ``model`` is a :data:`ModelKey`, the network or prediction method that was measured; ``site`` is the name
of an attention call of the network ([glossary](../glossary.md)). The baseline is the deterministic network of the same
run. Shapes: N examples, C classes, P draws, H attention heads, T queries, S keys.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from probattn.checks import imported_when_used, missing
from probattn.terminal import Group, Sheet, printable, printable_lines

if find_spec("jinja2") is None:
    raise missing("probattn.report", "jinja2", "report")

if TYPE_CHECKING:
    from probattn.report.alignment import Alignment, HeadCloud, SiteAlignment
    from probattn.report.attention import (
        AttentionExample,
        AttentionMap,
        Example,
        Reason,
        attention_example,
        own_tokens,
    )
    from probattn.report.bootstrap import (
        LEAST_EFFECT,
        LEAST_EXAMPLES,
        LEAST_SEEDS,
        bootstrap_p,
        compare,
        corrected,
        is_reliable,
        paired_bootstrap,
        seeds_p,
    )
    from probattn.report.curves import training_curves
    from probattn.report.distances import (
        HeadDistances,
        Projection,
        TokenSample,
        clouds,
        gather,
        head_bandwidths,
        head_distances,
        site_alignments,
    )
    from probattn.report.dynamics import (
        Agreement,
        Contextualized,
        Dynamics,
        PairAgreement,
        Rating,
        WatchedExample,
        WatchedMaps,
        WatchedStep,
    )
    from probattn.report.evaluation import (
        Evaluation,
        PredictedData,
        Predictions,
        confident_mistakes,
        describe,
        evaluate,
        evaluate_columns,
        mistakes_by_bin,
        most_uncertain,
    )
    from probattn.report.heads import HeadDrops, HeadRows, Heads, HeadsKey, SiteHeads, site_heads
    from probattn.report.measures import (
        CLASS_MEASURES,
        MODEL_LABELS,
        MODEL_TITLES,
        ROLE_TITLES,
        MeasureText,
        Verdict,
    )
    from probattn.report.page import render_report
    from probattn.report.record import (
        MODELS,
        ClassMeasure,
        Comparison,
        Curve,
        DataSet,
        Difference,
        Entropy,
        Listing,
        ModelKey,
        PAvPUPoint,
        ReliabilityBin,
        RiskCoverage,
        Role,
        RunDescription,
        Scores,
        SingleRun,
    )
    from probattn.report.results import SCHEMA_VERSION, Results, ResultsFileError, read_results, write_results
    from probattn.report.sites import (
        EDGE_MEASURES,
        EdgeAttention,
        SiteHealth,
        WeightSpread,
        site_health,
        weight_spreads,
    )
    from probattn.report.summary import Finding, combine, evidence, findings, headline
    from probattn.report.terminal import comparisons, results_table
    from probattn.report.words import WordsExample

# Predictions and their measures
__all__ = ["PredictedData", "Predictions", "Evaluation"]
__all__ += ["compare", "paired_bootstrap", "evaluate", "evaluate_columns", "describe"]
__all__ += ["most_uncertain", "confident_mistakes", "mistakes_by_bin"]
# Records of a run, their file and their page
__all__ += ["Results", "RunDescription", "SingleRun", "DataSet", "Scores", "Comparison"]
__all__ += ["Difference", "Entropy", "Curve", "ReliabilityBin", "RiskCoverage", "PAvPUPoint"]
__all__ += ["SCHEMA_VERSION", "ResultsFileError", "write_results", "read_results", "combine", "render_report"]
# Names of models, roles and measures
__all__ += ["ClassMeasure", "ModelKey", "Role", "MeasureText", "Listing"]
__all__ += ["CLASS_MEASURES", "MODELS", "MODEL_LABELS", "MODEL_TITLES", "ROLE_TITLES"]
# What is claimed, and when a difference counts
__all__ += ["Verdict", "Finding", "findings", "headline", "evidence", "comparisons"]
__all__ += ["LEAST_EFFECT", "LEAST_EXAMPLES", "LEAST_SEEDS"]
__all__ += ["is_reliable", "bootstrap_p", "seeds_p", "corrected"]
# Topics of a page: maps, queries and keys, heads, sites, training
__all__ += ["Example", "AttentionExample", "AttentionMap", "attention_example", "own_tokens"]
__all__ += ["Reason", "WordsExample"]
__all__ += ["Alignment", "SiteAlignment", "HeadCloud", "TokenSample", "HeadDistances", "Projection"]
__all__ += ["gather", "head_bandwidths", "head_distances", "site_alignments", "clouds"]
__all__ += ["Heads", "SiteHeads", "HeadDrops", "HeadRows", "HeadsKey", "site_heads"]
__all__ += ["SiteHealth", "WeightSpread", "EdgeAttention", "EDGE_MEASURES", "weight_spreads", "site_health"]
__all__ += ["Dynamics", "WatchedExample", "WatchedMaps", "WatchedStep", "training_curves"]
__all__ += ["Agreement", "Contextualized", "PairAgreement", "Rating"]
# Tables and text of a terminal
__all__ += ["Group", "Sheet", "results_table", "printable", "printable_lines"]

_MODULES = """alignment attention bootstrap curves dynamics evaluation summary distances heads measures page record
results sites terminal words"""

__getattr__ = imported_when_used(__name__, __all__, _MODULES.split(), options=())
