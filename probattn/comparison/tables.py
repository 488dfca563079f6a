"""A comparison for a terminal, and its words."""

from __future__ import annotations

from probattn.comparison.results import ComparisonResults, Row
from probattn.comparison.ways import MEASURES
from probattn.inference.report import Group, Sheet

TITLES = {
    "point": "one pass",
    "temperature": "temperature",
    "laplace": "Laplace, last layer",
    "maximum": "maximum probability (for OOD)",
    "energy": "energy (for OOD)",
    "distance": "distance of features (for OOD)",
    "dropout": "dropout draws",
    "dropout_information": "dropout draws, mutual information (for OOD)",
    "draws": "posterior draws",
    "draws_information": "posterior draws, mutual information (for OOD)",
    "draws_temperature": "posterior draws, temperature",
    "moments": "moments",
    "moments_temperature": "moments, temperature",
    "ensemble": "ensemble of the seeds",
}
"""Ways of predicting in words."""
SHOWN = ("accuracy", "nll", "ece", "coverage", "auroc")
"""Measures that a terminal has room for."""


def comparison_table(results: ComparisonResults) -> Sheet:
    """Means over seeds by recipe and way; a star marks reliable differences to the reference."""
    measures = [name for name in SHOWN if any(name in row.values for row in results.rows)]
    groups = [
        Group(
            f"{name}: {method}",
            tuple(_cells(results, row, measures) for row in results.rows if row.recipe == name),
        )
        for name, method in results.methods.items()
    ]
    recipe, way = results.reference
    meaning = (
        f"Means over {len(results.seeds)} seeds; cost in passes. Coverage: the largest share of the test texts, the "
        f"most confident first, with at most {100 * results.error:g}% wrong. AUROC: test against out-of-distribution "
        "texts, by the entropy, or by what the way is named after."
    )
    mark = (
        f"* marks reliable differences to {recipe}, {TITLES[way]}: paired by seed, three seeds or more, Holm's method "
        "over the ways."
    )
    headings = ("", *(MEASURES[name].short for name in measures), "cost")
    return Sheet(headings, tuple(groups), notes=(meaning, mark))


def _cells(results: ComparisonResults, row: Row, measures: list[str]) -> tuple[str, ...]:
    def cell(name: str) -> str:
        if name not in row.values:
            return ""
        gap = row.gaps.get(name)
        mark = "*" if gap is not None and results.verdict(name, gap) != "unclear" else " "
        return f"{MEASURES[name].value(row.values[name].mean)}{mark}"

    return (TITLES[row.way], *map(cell, measures), f"{row.cost.mean:.1f}")
