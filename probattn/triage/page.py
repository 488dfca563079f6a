"""The page on a policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from probattn.report.charts.lines import Line, line_chart, nice_top, ticks
from probattn.report.charts.svg import Axis
from probattn.report.markup import Section, plain
from probattn.report.page import render_page, run_section
from probattn.triage.results import TriageResults
from probattn.triage.tables import (
    differ,
    headline,
    novelty_words,
    opening,
    percent,
    promise_words,
    share,
)

SHOWN_CLASSES = 40
"""Classes that the page shows, those that are predicted most."""
MATRIX = 12
"""Most classes of a matrix of confusions."""
SMALLEST_SHARE = 0.02


def page(results: TriageResults) -> str:
    """The page as text; equal records give an equal page."""
    policy = results.policy
    return render_page(
        _sections(results),
        kind="triage",
        run=results.run,
        headline=headline(results),
        opening=opening(results),
        facts=(
            ("Network", plain(results.run.network)),
            ("Method", plain(results.run.method)),
            ("Promise", promise_words(policy)),
            ("Uncertainty", policy.score.replace("_", " ")),
        ),
        package="probattn.triage",
    )


def _sections(results: TriageResults) -> Iterator[Section]:
    shared = {
        "results": results,
        "policy": results.policy,
        "share": share,
        "percent": percent,
        "differ": differ,
        "novelty": novelty_words(results.policy),
    }

    def section(anchor: str, title: str, heading: str, **context: Any) -> Section:
        return Section(anchor, title, heading, "triage.html", {**shared, "anchor": anchor, **context})

    yield section("promises", "Promises", "What can be answered", chart=_chart(results))
    yield section("outcomes", "Data sets", "What the policy does")
    yield section("classes", "Classes", "By class", **_classes(results))
    yield section("costs", "Costs", "What a decision costs")
    if results.set_sizes is not None:
        yield section("sets", "Sets", "Sets of classes")
    note = Markup(
        "Every number of this page is in <code>triage.json</code>; <code>policy.json</code> is the policy."
    )
    yield run_section(results.run, (), note, (), results.policy.classes)


def _chart(results: TriageResults) -> Markup:
    curve, error = results.curve, results.policy.error
    points = tuple(p for p in zip(curve.coverage, curve.risk, strict=True) if p[0] >= SMALLEST_SHARE)
    lines = [Line("wrong", "bay", points)]
    if error is not None:
        lines.append(Line("promise", "det", ((0.0, error), (1.0, error))))
    top = nice_top(max([error or 0.0, *(risk for _, risk in points)]))
    x = Axis(0, 1, "answered share (most confident first)", ticks(0, 1, 4, percent=True))
    y = Axis(0, top, "wrong among them", ticks(0, top, 4, percent=True))
    return line_chart(lines, x, y, "Error among answered inputs")


def _classes(results: TriageResults) -> dict[str, Any]:
    """Rows of the table of classes, and the matrix of confusions where there are few."""
    rows = sorted(results.classes, key=lambda row: -row.predicted)[:SHOWN_CLASSES]
    names = [row.label for row in results.classes]
    if len(names) > MATRIX:
        return {"rows": rows, "names": names, "matrix": None}
    cells = {(item.label, item.predicted): (item.count, item.answered) for item in results.confused}
    for row in results.classes:
        wrong = sum(count for (_, predicted), (count, _) in cells.items() if predicted == row.label)
        cells[row.label, row.label] = (row.predicted - wrong, row.answered - row.errors)
    matrix = [(true, [cells.get((true, name), (0, 0)) for name in names]) for true in names]
    return {"rows": rows, "names": names, "matrix": matrix}
