"""The page on a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from probattn.comparison.results import ComparisonResults, Row
from probattn.comparison.tables import MEASURE_TITLES, TITLES, interval_words, reliable
from probattn.inference.report.charts.lines import Line, line_chart, ticks
from probattn.inference.report.charts.svg import Axis
from probattn.inference.report.markup import Section, plain
from probattn.inference.report.page import render_page

STYLES = ("det", "bay", "exp", "mom")
"""Colours of recipes, in turn."""
COSTS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class _Named:
    name: str


def page(results: ComparisonResults) -> str:
    """The page as text; equal records give an equal page."""
    recipe, way = results.reference
    return render_page(
        _sections(results),
        kind="comparison",
        run=_Named(" against ".join(results.methods)),
        headline=headline(results),
        opening=f"Differences are to {recipe}, {TITLES[way]}, paired by seed.",
        facts=(
            ("Data", plain(results.data)),
            ("Trained on", f"{results.sizes['train']:,} texts"),
            ("Measured on", f"{results.sizes['test']:,} texts"),
            ("Seeds", str(len(results.seeds))),
        ),
        package="probattn.comparison",
    )


def headline(results: ComparisonResults) -> str:
    """What answers most at the error, and whether that is reliably more than the reference."""
    percent = f"{100 * results.error:g}%"
    best = max(results.rows, key=lambda row: row.values["coverage"].mean)
    words = f"{best.recipe}, {TITLES[best.way]}"
    share = f"{100 * best.values['coverage'].mean:.1f}%"
    if (best.recipe, best.way) == results.reference:
        return f"Nothing answers more at {percent} error than {words}: {share}"
    if not reliable(best.gaps.get("coverage")):
        return f"No way answers reliably more at {percent} error than the reference"
    return f"{words} answers most at {percent} error: {share} of the texts"


def _sections(results: ComparisonResults) -> Iterator[Section]:
    measures = [name for name in MEASURE_TITLES if any(name in row.values for row in results.rows)]
    context = {
        "results": results,
        "titles_of": TITLES,
        "measures": [(name, MEASURE_TITLES[name]) for name in measures],
        "words": interval_words,
        "reliable": reliable,
    }
    charts = [
        ("coverage", f"Answered at {100 * results.error:g}% error"),
        ("auroc", "AUROC of foreign inputs"),
    ]
    shown = [(title, _frontier(results, measure, title)) for measure, title in charts if measure in measures]
    parts = (("frontier", "Frontier", "What a pass buys"), ("figures", "Figures", "All figures"))
    for part, title, heading in (*parts, ("runs", "Runs", "The runs")):
        yield Section(part, title, heading, "comparison.html", {**context, "part": part, "charts": shown})


def _frontier(results: ComparisonResults, measure: str, title: str) -> Markup:
    """A measure against the cost, with the intervals over seeds."""
    styles = {name: STYLES[place % len(STYLES)] for place, name in enumerate(results.methods)}
    rows = [row for row in results.rows if measure in row.values]
    lines = [line for row in rows for line in _marks(row, measure, styles[row.recipe])]
    values = [value for line in lines for _, value in line.points]
    low, high = min(values), max(values)
    room = max(0.05 * (high - low), 0.005)
    most = max(row.cost.mean for row in rows)
    marks = tuple((math.log10(cost), str(cost)) for cost in COSTS if cost <= 1.5 * most)
    x = Axis(-0.05, math.log10(1.2 * most) + 0.05, "cost of a prediction, passes", marks)
    y = Axis(low - room, high + room, title, ticks(low - room, high + room, 4, percent=measure == "coverage"))
    return line_chart(lines, x, y, f"{title} against cost")


def _marks(row: Row, measure: str, style: str) -> Iterator[Line]:
    found, place = row.values[measure], math.log10(max(row.cost.mean, 1.0))
    if found.low is not None and found.high is not None:
        yield Line("", style, ((place, found.low), (place, found.high)))
    yield Line(f"{row.recipe}, {TITLES[row.way]}", style, ((place, found.mean),), dots=True)
