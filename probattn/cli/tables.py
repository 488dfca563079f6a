"""Results as tables in a terminal."""

from __future__ import annotations

from rich.table import Table

from probattn.inference.report import MODEL_TITLES, TEXTS, Example, Measure, ModelKey, Results

SHOWN: tuple[Measure, ...] = ("accuracy", "nll", "ece", "overconfidence", "pavpu", "aurc", "auroc", "fpr95")


def results_table(results: Results, model: ModelKey = "bayesian_mean") -> Table:
    """Deterministic against Bayesian, measure by measure, with the difference and its 95% interval."""
    table = Table(title=results.run.name, title_justify="left")
    table.add_column("data")
    table.add_column("measure")
    for key in ("deterministic", model):
        table.add_column(MODEL_TITLES[key], justify="right")
    table.add_column("difference [95% interval]", justify="right")
    for data in results.data:
        for measure in SHOWN:
            cells = [_cell(results, key, data.key, measure) for key in ("deterministic", model)]
            if not any(cells):
                continue
            found = results.difference(measure, model, data.key)
            gap = "" if found is None else f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
            table.add_row(data.title, TEXTS[measure].title, *cells, gap)
    return table


def _cell(results: Results, model: ModelKey, data: str, measure: Measure) -> str:
    score = results.score(model, data)
    value = None if score is None else score.measure(measure)
    return "" if value is None else f"{value:.4f}"


def predictions_table(examples: list[Example]) -> Table:
    """Label, probability and spread of single texts."""
    table = Table()
    for heading, justify in (
        ("text", "left"),
        ("label", "left"),
        ("probability", "right"),
        ("spread", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # rich's literal
    for example in examples:
        table.add_row(example.text, example.predicted, f"{example.probability:.3f}", f"{example.spread:.3f}")
    return table
