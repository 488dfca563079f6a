"""The table of docs/data/relatedness.json, which `tests/benchmarks/study.py relatedness` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py relatedness"
ROWS = {
    "rmse": ("RMSE", ".3f", 1.0),
    "pearson": ("Pearson correlation", ".3f", 1.0),
    "nll": ("negative log-likelihood, nats", ".3f", 1.0),
    "coverage_80": ("coverage of 80% intervals, %", ".1f", 100.0),
    "stretched_coverage_80": ("the same, calibrated", ".1f", 100.0),
    "score_80": ("interval score at 80%, calibrated", ".3f", 1.0),
    "coverage_95": ("coverage of 95% intervals, %", ".1f", 100.0),
    "stretched_coverage_95": ("the same, calibrated", ".1f", 100.0),
    "score_95": ("interval score at 95%, calibrated", ".3f", 1.0),
}
"""Name, digits and scale of each figure."""


def tables(content: Mapping[str, Any]) -> str:
    """Both networks, and their difference, over seeds."""
    runs, summary = content["runs"], content["summary"]
    sizes = runs[0]["sizes"]
    setting = (
        f"{len(runs)} seeds; {sizes['training']:,} pairs to train on, {sizes['validation']:,} to calibrate on, "
        f"{sizes['test']:,} to measure on. Mean over seeds and its 95% interval (Student's t)."
    )
    rows = [
        [
            title,
            *(
                interval(summary[model][name], form, scale=scale)
                for model in ("deterministic", "bayesian_mean")
            ),
            interval(summary["difference"].get(name), f"+{form}", scale=scale),
        ]
        for name, (title, form, scale) in ROWS.items()
    ]
    head = ["SICK, relatedness 1 to 5", "deterministic", "BABN", "difference, paired"]
    return f"{setting}\n\n{table(head, rows)}"
