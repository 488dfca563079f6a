"""Results and predictions as tables of the terminal."""

from __future__ import annotations

from probattn.cli.sheets import Group, Sheet
from probattn.inference.report import (
    EDGE_MEASURES,
    MODEL_TITLES,
    ROLE_TITLES,
    TEXTS,
    Example,
    Measure,
    ModelKey,
    Results,
    findings,
    headline,
)

HEADINGS: dict[ModelKey, str] = {
    "deterministic": "deterministic",
    "aligned": "aligned",
    "repulsive": "repulsive",
    "regularised": "regularised",
    "bayesian_mean": "Bayesian",
}
SHOWN: tuple[Measure, ...] = (
    "accuracy",
    "matthews",
    "f1",
    "nll",
    "ece",
    "overconfidence",
    "pavpu",
    "aurc",
    "auroc",
    "fpr95",
)
RELIABLE = "*"
"""Marks a difference that may be spoken of."""


def results_table(results: Results, model: ModelKey | None = None) -> Sheet:
    """Deterministic against the run's own network, measure by measure, with the difference and its interval."""
    model = model or results.contender
    compared = [key for key in ("deterministic", model) if results.score(key, results.home.key) is not None]
    headings = ["measure", *(HEADINGS.get(key, MODEL_TITLES[key]) for key in compared)]
    found = findings(results)
    if len(compared) > 1:
        level = found[0].difference.level if found else 0.95
        headings += ["difference", f"{level:.0%} interval"]
    groups = []
    for data in results.data:
        rows = []
        for measure in SHOWN:
            cells = [_cell(results, key, data.key, measure) for key in compared]
            if any(cells):
                gap = _gap(results, measure, model, data.key) if len(compared) > 1 else []
                rows.append((TEXTS[measure].title, *cells, *gap))
        if rows:
            groups.append(
                Group(f"{data.title} ({ROLE_TITLES[data.role]}, {data.size:,} {data.unit})", tuple(rows))
            )
    for site, edges in _edges(results, compared).items():
        groups.append(Group(site, tuple((*row, *[""] * (len(headings) - len(row))) for row in edges)))
    return Sheet(tuple(headings), tuple(groups), notes=_notes(results))


def _notes(results: Results) -> tuple[str, ...]:
    found = findings(results)
    if not found:
        return ()
    kind = "Student's t over seeds" if results.runs else "bootstrap over examples"
    legend = (
        f"Intervals: {kind}, each of its comparison alone. {RELIABLE} marks what holds among all {len(found)} "
        "comparisons (Holm's method), is large enough and rests on enough examples."
    )
    return (f"{headline(results)}.", legend)


def _edges(results: Results, compared: list[ModelKey]) -> dict[str, list[tuple[str, ...]]]:
    """Attention over the edges of a graph, layer by layer; latent weights are measured at their expectation."""
    found = {(record.site, record.model): record for record in results.edges}
    keys: list[ModelKey] = ["bayesian_expectation" if key == "bayesian_mean" else key for key in compared]
    return {
        site: [
            (
                words,
                *(f"{getattr(found[site, key], name):.3f}" if (site, key) in found else "" for key in keys),
            )
            for name, words in EDGE_MEASURES.items()
        ]
        for site in dict.fromkeys(record.site for record in results.edges)
    }


def _gap(results: Results, measure: Measure, model: ModelKey, data: str) -> tuple[str, str]:
    found = results.difference(measure, model, data)
    if found is None:
        return "", ""
    mark = " " if results.verdict(found) == "unclear" else RELIABLE
    return f"{found.value:+.3f}", f"[{found.low:+.3f}, {found.high:+.3f}]{mark}"


def _cell(results: Results, model: ModelKey, data: str, measure: Measure) -> str:
    score = results.score(model, data)
    value = None if score is None else score.measure(measure)
    return "" if value is None else f"{value:.3f}"


def predictions_table(examples: list[Example]) -> Sheet:
    """Label, probability and spread of single texts."""
    paired = any(example.pair is not None for example in examples)
    texts = ("text", "second text") if paired else ("text",)
    rows = []
    for example in examples:
        given = (example.text, example.pair or "") if paired else (example.text,)
        rows.append((*given, example.predicted, f"{example.probability:.3f}", f"{example.spread:.3f}"))
    return Sheet((*texts, "label", "probability", "spread"), (Group("", tuple(rows)),), words=len(texts) + 1)
