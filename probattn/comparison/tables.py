"""A comparison for a terminal, and its words."""

from __future__ import annotations

from probattn.comparison.results import ComparisonResults, Row
from probattn.comparison.variants import MEASURES
from probattn.report import Group, Sheet

TITLES = {
    "point": "one pass",
    "temperature": "temperature",
    "laplace": "Laplace, last layer",
    "laplace_temperature": "Laplace, temperature",
    "maximum": "maximum probability (OOD)",
    "energy": "energy (OOD)",
    "distance": "feature distance (OOD)",
    "dropout": "dropout draws",
    "dropout_temperature": "dropout, temperature",
    "dropout_information": "dropout, information (OOD)",
    "draws": "posterior draws",
    "draws_temperature": "draws, temperature",
    "draws_information": "draws, information (OOD)",
    "moments": "moments",
    "moments_temperature": "moments, temperature",
    "ensemble": "ensemble of the seeds",
    "ensemble_temperature": "ensemble, temperature",
}
"""Ways of predicting in words."""
SHOWN = ("accuracy", "nll", "ece", "coverage", "answered", "auroc")
"""Measures that a terminal has room for."""


def row_title(row: Row) -> str:
    """A variant in words; of moments with the share that is in closed form, unless that is all."""
    share = row.closed_form
    return TITLES[row.variant] + ("" if share is None or share == 1 else f", {share:.0%} in closed form")


def comparison_table(results: ComparisonResults) -> Sheet:
    """Means over seeds by recipe and variant; a star marks reliable differences to the reference."""
    measures = [name for name in SHOWN if any(name in row.values for row in results.rows)]
    groups = [
        Group(
            f"{name}: {method}",
            tuple(_cells(results, row, measures) for row in results.rows if row.recipe == name),
        )
        for name, method in results.methods.items()
    ]
    recipe, variant = results.reference
    meaning = (
        f"Means over {len(results.seeds)} seeds; cost in passes of {results.reference[0]}. Coverage: the largest share "
        f"of the test texts, the most confident first, with at most {100 * results.error:g}% wrong, which takes the "
        "true classes to know; answered: the share that a policy answers which promises that error. AUROC: test "
        "against out-of-distribution (OOD) texts, by the entropy, or by what the way is named after."
    )
    mark = (
        f"* marks reliable differences to {recipe}, {TITLES[variant]}, for these test texts: paired by seed, three "
        "seeds or more, Holm's method over the ways."
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

    return (row_title(row), *map(cell, measures), f"{row.cost.mean:.1f}")
