"""Results and predictions as tables for a terminal, a pipe or a file: plain text, no number ever cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probattn.report.measures import MODEL_LABELS, ROLE_TITLES
from probattn.report.record import ModelKey
from probattn.report.results import Results
from probattn.report.sites import EDGE_MEASURES
from probattn.report.summary import findings, headline
from probattn.terminal import Group, Sheet

RELIABLE = "*"
"""Marks a significant difference."""


def results_table(results: Results) -> Sheet:
    """Table of all measures of the deterministic and of the run's network, with differences and their intervals."""
    compared = results.compared
    measured = {score.model for score in results.scores}
    models = [key for key in dict.fromkeys(("deterministic", compared)) if key in measured]
    headings = ["measure", *(MODEL_LABELS[key] for key in models)]
    if results.differences:
        headings += ["difference", f"{results.differences[0].level:.0%} interval"]
    groups = []
    for data in results.data:
        rows = []
        for name, text in results.measures.items():
            values = [results.value(name, key, data.key) for key in models]
            if any(value is not None for value in values):
                cells = ["" if value is None else f"{value:.3f}" for value in values]
                rows.append((text.title, *cells, *_gap(results, name, data.key)))
        if rows:
            groups.append(
                Group(f"{data.title} ({ROLE_TITLES[data.role]}, {data.size:,} {data.unit})", tuple(rows))
            )
    groups += _edges(results, models, len(headings))
    return Sheet(tuple(headings), tuple(groups), notes=_notes(results))


def _notes(results: Results) -> tuple[str, ...]:
    """The headline, and how the intervals are read."""
    if not results.differences:
        return (f"{headline(results)}.",) if results.scores else ()
    legend = (
        f"Intervals: {results.intervals}, each of its comparison alone. {RELIABLE} marks what holds among all "
        f"{len(findings(results))} comparisons (Holm's method), is large enough and rests on enough examples."
    )
    return f"{headline(results)}.", legend


def _edges(results: Results, compared: list[ModelKey], width: int) -> Iterator[Group]:
    """Attention over the edges of a graph, layer by layer; latent weights are measured at their expectation."""
    records = {(record.site, record.model): record for record in results.edges}
    keys = ["bayesian_expectation" if key == "bayesian_mean" else key for key in compared]
    for site in dict.fromkeys(record.site for record in results.edges):
        measured = [records.get((site, key)) for key in keys]
        rows = []
        for name, words in EDGE_MEASURES.items():
            cells = ["" if record is None else f"{getattr(record, name):.3f}" for record in measured]
            rows.append((words, *cells, *[""] * (width - 1 - len(cells))))
        yield Group(site, tuple(rows))


def _gap(results: Results, measure: str, data: str) -> tuple[str, ...]:
    if not results.differences:
        return ()
    difference = results.difference(measure, results.compared, data)
    if difference is None:
        return "", ""
    mark = " " if results.verdict(difference) == "unclear" else RELIABLE
    return f"{difference.value:+.3f}", f"[{difference.low:+.3f}, {difference.high:+.3f}]{mark}"


def comparisons(results: Results) -> list[dict[str, Any]]:
    """Every comparison with its verdict, as JSON-compatible dictionaries."""
    return [
        {**finding.difference.model_dump(exclude={"seeds", "resamples"}), "verdict": finding.verdict}
        for finding in findings(results)
    ]
