"""Results as tables in a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table

from probattn.inference.report import EDGE_MEASURES, MODEL_TITLES, TEXTS, Example, Measure, ModelKey, Results

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


def results_table(results: Results, model: ModelKey | None = None) -> Table:
    """Deterministic against the run's own network, measure by measure, with the difference and its 95% interval."""
    model = model or results.contender
    compared = [key for key in ("deterministic", model) if results.score(key, results.home.key) is not None]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("data", no_wrap=True)
    table.add_column("measure", no_wrap=True)
    for key in compared:
        table.add_column(HEADINGS.get(key, MODEL_TITLES[key]), justify="right", no_wrap=True)
    if len(compared) > 1:
        table.add_column("difference [interval]", justify="right", no_wrap=True)
    for data in results.data:
        title = f"{data.title} ({data.size:,})"
        for measure in SHOWN:
            cells = [_cell(results, key, data.key, measure) for key in compared]
            if not any(cells):
                continue
            if len(compared) > 1:
                cells.append(_gap(results, measure, model, data.key))
            table.add_row(title, TEXTS[measure].title, *cells)
            title = ""
        table.add_section()
    for row in _edges(results, compared):
        table.add_row(*row)
    return table


def _edges(results: Results, compared: list[ModelKey]) -> list[list[str]]:
    """Attention over the edges of a graph, layer by layer; latent weights are measured at their expectation."""
    found = {(record.site, record.model): record for record in results.edges}
    rows = []
    for site in dict.fromkeys(record.site for record in results.edges):
        title = site
        for name, words in EDGE_MEASURES.items():
            keys = ["bayesian_expectation" if key == "bayesian_mean" else key for key in compared]
            cells = [f"{getattr(found[site, key], name):.3f}" if (site, key) in found else "" for key in keys]
            rows.append([title, words, *cells])
            title = ""
    return rows


def _gap(results: Results, measure: Measure, model: ModelKey, data: str) -> str:
    found = results.difference(measure, model, data)
    return "" if found is None else f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _cell(results: Results, model: ModelKey, data: str, measure: Measure) -> str:
    score = results.score(model, data)
    value = None if score is None else score.measure(measure)
    return "" if value is None else f"{value:.3f}"


def predictions_table(examples: list[Example]) -> Table:
    """Label, probability and spread of single texts."""
    table = Table()
    paired = any(example.pair is not None for example in examples)
    for heading in ("text", *(["second text"] if paired else []), "label"):
        table.add_column(heading)
    for heading in ("probability", "spread"):
        table.add_column(heading, justify="right")
    for example in examples:
        texts = [example.text, example.pair or ""] if paired else [example.text]
        table.add_row(*texts, example.predicted, f"{example.probability:.3f}", f"{example.spread:.3f}")
    return table
