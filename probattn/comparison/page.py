"""A comparison as an HTML page, and as a table for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from probattn.comparison.variants import MEASURES, ComparisonResults, Interval, Row
from probattn.report import Group, Sheet
from probattn.report.lines import LABEL_GAP, LETTER, ticks
from probattn.report.markup import Section, exact, plain
from probattn.report.page import render_page
from probattn.report.sections import gap_words
from probattn.report.svg import Axis, Frame, Plot, add, hint, spread_labels, text_of, write

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
"""Prediction methods in words."""
SHOWN = ("accuracy", "nll", "ece", "coverage", "answered", "auroc")
"""Measures that a terminal has room for."""


def row_title(row: Row) -> str:
    """A variant in words; of moments with the share that is in closed form, unless that is all."""
    share = row.closed_form
    return TITLES[row.variant] + ("" if share is None or share == 1 else f", {share:.0%} in closed form")


def comparison_table(results: ComparisonResults) -> Sheet:
    """Means over seeds by recipe and prediction method; a star marks significant differences to the reference."""
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
        "true classes to know; answered: the share that a policy of that target error rate answers. AUROC: test "
        "against out-of-distribution (OOD) texts, by the entropy, or by the score that the row names."
    )
    mark = (
        f"* marks significant differences to {recipe}, {TITLES[variant]}, for these test texts: paired by seed, three "
        "seeds or more, Holm's correction over all rows."
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


STYLES = ("det", "bay", "exp", "mom")
"""Colours of recipes, in turn."""
COSTS = (1, 2, 5, 10, 20, 50, 100)
WIDTH, HEIGHT = 420, 280


def page(results: ComparisonResults) -> str:
    """The page as text; equal records give an equal page."""
    recipe, variant = results.reference
    return render_page(
        _sections(results),
        kind="comparison",
        name=" against ".join(results.methods),
        headline=headline(results),
        opening=f"Differences are to {recipe}, {TITLES[variant]}, paired by seed.",
        facts=(
            ("Data", plain(results.data)),
            ("Trained on", f"{results.sizes['train']:,} texts"),
            ("Measured on", f"{results.sizes['test']:,} texts"),
            ("Seeds", str(len(results.seeds))),
        ),
        package="probattn.comparison",
    )


def headline(results: ComparisonResults) -> str:
    """The variant with most coverage at the error among those with significantly more of it than the reference."""
    percent = f"{100 * results.error:g}%"
    gains = [
        row
        for row in results.rows
        if (gap := row.gaps.get("coverage")) is not None and results.verdict("coverage", gap) == "better"
    ]
    if not gains:
        return f"No prediction method has significantly more coverage at {percent} error than the reference"
    best = max(gains, key=lambda row: row.values["coverage"].mean)
    share = f"{100 * best.values['coverage'].mean:.1f}%"
    return f"{best.recipe}, {row_title(best)}, has significantly more coverage at {percent} error: {share} of the texts"


def _sections(results: ComparisonResults) -> Iterator[Section]:
    measures = [name for name in MEASURES if any(name in row.values for row in results.rows)]
    titles = {
        "coverage": f"Coverage at {100 * results.error:g}% error",
        "auroc": "AUROC of out-of-distribution inputs",
    }
    charts = [(title, _frontier(results, name, title)) for name, title in titles.items() if name in measures]
    rows = [(row, [_figure(results, row, name) for name in measures]) for row in results.rows]
    context = {
        "results": results,
        "title_of": row_title,
        "measures": [MEASURES[name] for name in measures],
        "charts": charts,
        "rows": rows,
    }
    sections = (("frontier", "Frontier", "Quality against cost"), ("figures", "Figures", "All figures"))
    for anchor, title, heading in (*sections, ("runs", "Runs", "The runs")):
        yield Section(anchor, title, heading, "comparison.html", {**context, "anchor": anchor})


def _figure(results: ComparisonResults, row: Row, measure: str) -> dict[str, Any]:
    """A cell of the table: the mean, and the difference to the reference."""
    interval, gap, text = row.values.get(measure), row.gaps.get(measure), MEASURES[measure]
    value = None if interval is None else interval.mean
    words = None if gap is None else gap_words(gap, text, results.verdict(measure, gap))
    return {"value": exact(value, text.value(value)), "gap": words}


def _frontier(results: ComparisonResults, measure: str, title: str) -> Markup:
    """A measure against the cost: a dot a variant, and a line a recipe through what no cheaper one exceeds."""
    rows = [row for row in results.rows if measure in row.values]
    values = [row.values[measure].mean for row in rows]
    room = max(0.3 * (max(values) - min(values)), 0.01)
    low, high = max(min(values) - room, 0.0), min(max(values) + room, 1.0)
    highest = max(row.cost.mean for row in rows)
    marks = tuple((math.log10(cost), str(cost)) for cost in COSTS if cost <= 1.5 * highest)
    x = Axis(-0.05, math.log10(1.2 * highest) + 0.05, "cost of a prediction, passes", marks)
    y = Axis(low, high, title, ticks(low, high, 4, percent=measure == "coverage"))
    names = list(results.methods)
    frame = Frame(width=WIDTH, height=HEIGHT, right=int(20 + LETTER * max(map(len, names))))
    plot = Plot.begin(frame, x, y, f"{title} against cost", "; ".join(names))
    ends = []
    for index, name in enumerate(names):
        style, best = STYLES[index % len(STYLES)], -math.inf
        ordered = sorted(
            (row for row in rows if row.recipe == name),
            key=lambda row: (row.cost.mean, -row.values[measure].mean),
        )
        points = []
        for row in ordered:
            at, mean = math.log10(max(row.cost.mean, 1.0)), row.values[measure].mean
            dot = add(plot.root, "circle", f"dot {style}", cx=plot.across(at), cy=plot.up(mean), r=3)
            hint(dot, f"{row.recipe}, {row_title(row)}: {MEASURES[measure].value(mean)}")
            if mean > best:
                best = mean
                points.append((at, mean))
                _whisker(plot, at, row.values[measure], (low, high), style)
        if not points:  # of a recipe without such data
            continue
        points.append((x.high, best))
        add(plot.root, "path", f"line {style}", d=plot(points))
        ends.append((name, style, plot.up(best)))
    heights = spread_labels(
        [height for _, _, height in ends], LABEL_GAP, frame.top, frame.height - frame.bottom
    )
    for (name, style, _), height in zip(ends, heights, strict=True):
        write(plot.root, plot.across(x.high) + 8, height + 4, name, f"end-label {style}")
    return text_of(plot.root)


def _whisker(plot: Plot, at: float, interval: Interval, limits: tuple[float, float], style: str) -> None:
    """The interval of a mean, as far as it lies in the drawing."""
    if interval.low is None or interval.high is None:
        return
    ends = [(at, min(max(value, limits[0]), limits[1])) for value in (interval.low, interval.high)]
    add(plot.root, "path", f"leader {style}", d=plot(ends))
