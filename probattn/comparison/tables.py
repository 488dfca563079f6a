"""A comparison for a terminal, and its words."""

from __future__ import annotations

from probattn.comparison.results import ComparisonResults, Gap, Interval, Row
from probattn.inference.report import Group, Sheet

TITLES = {
    "point": "one pass",
    "temperature": "temperature",
    "laplace": "Laplace, last layer",
    "energy": "energy (for foreign inputs)",
    "distance": "distance of features (likewise)",
    "dropout": "dropout draws",
    "draws": "posterior draws",
    "draws, temperature": "posterior draws, temperature",
    "moments": "moments",
    "moments, temperature": "moments, temperature",
    "ensemble": "ensemble of the seeds",
}
MEASURE_TITLES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "aurc": "AURC",
    "coverage": "coverage",
    "answered": "promised",
    "auroc": "AUROC",
}
SHOWN = ("accuracy", "nll", "ece", "coverage", "auroc")
LEVEL, LEAST_SEEDS = 0.05, 3
SHARES = ("accuracy", "ece", "coverage", "answered")
"""Measures in percent."""


def number(measure: str, value: float, *, sign: bool = False) -> str:
    """A figure as text.

    Example:
        >>> number("accuracy", 0.912), number("nll", -0.0123, sign=True)
        ('91.2', '-0.012')
    """
    form = "+" if sign else ""
    return format(100 * value, f"{form}.1f") if measure in SHARES else format(value, f"{form}.3f")


def reliable(gap: Gap | None) -> bool:
    """Whether a difference holds among all that were tested; two seeds say nothing of how much they scatter."""
    return (
        gap is not None and gap.corrected is not None and gap.corrected <= LEVEL and gap.seeds >= LEAST_SEEDS
    )


def interval_words(measure: str, found: Interval, *, sign: bool = False) -> str:
    """A mean with its interval.

    Example:
        >>> interval_words("coverage", Interval(mean=0.8, low=0.78, high=0.82, seeds=3))
        '80.0 [78.0, 82.0]'
    """
    mean = number(measure, found.mean, sign=sign)
    if found.low is None or found.high is None:
        return mean
    low, high = number(measure, found.low, sign=sign), number(measure, found.high, sign=sign)
    return f"{mean} [{low}, {high}]"


def comparison_table(results: ComparisonResults) -> Sheet:
    """Means over seeds by recipe and way; a star marks reliable differences to the reference."""
    measures = [name for name in SHOWN if any(name in row.values for row in results.rows)]
    groups = []
    for name, method in results.methods.items():
        rows = [row for row in results.rows if row.recipe == name]
        groups.append(Group(f"{name}: {method}", tuple(_cells(row, measures) for row in rows)))
    recipe, way = results.reference
    percent = f"{100 * results.error:g}%"
    meaning = (
        f"Means over {len(results.seeds)} seeds; cost in passes. Coverage: the largest share of the test texts, the "
        f"surest first, with at most {percent} wrong. AUROC: test against out-of-domain texts, by the entropy, or by "
        "what the way is named after. Accuracy, ECE and coverage in percent."
    )
    mark = f"* marks reliable differences to {recipe}, {TITLES[way]} (paired by at least three seeds, Holm's method)."
    notes = (meaning, mark)
    return Sheet(("", *(MEASURE_TITLES[name] for name in measures), "cost"), tuple(groups), notes=notes)


def _cells(row: Row, measures: list[str]) -> tuple[str, ...]:
    cells = [
        f"{number(name, row.values[name].mean)}{'*' if reliable(row.gaps.get(name)) else ' '}"
        if name in row.values
        else ""
        for name in measures
    ]
    return (TITLES[row.way], *cells, f"{row.cost.mean:.1f}")
